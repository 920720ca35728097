// Package faults makes docs/faults.md: what clients see, and what the accounts show, when
// servers, clients, connections, names, clocks and disks misbehave. It has tests alone.
package faults
