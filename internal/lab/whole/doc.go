// Package whole tests a router with index, predictor and latency targets as a whole. It exports
// nothing.
//
// TestInvariant… test what always holds, over random interleavings of everything that may happen;
// docs/design.md lists them. Invariants of single packages are tested there. TestFaults generates
// docs/faults.md: what clients see, and what the accounts show, when servers, clients,
// connections, names, clocks and disks misbehave.
package whole
