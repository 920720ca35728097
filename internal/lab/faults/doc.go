// Package faults generates docs/faults.md: what clients see, and what the accounts show,
// when servers, clients, connections, names, clocks and disks misbehave. It only has
// tests.
package faults
