// Package invariants tests what always holds, as properties of a real router with
// index, predictor and latency targets, over random interleavings of everything
// that may happen to it. Invariants of single packages are tested there.
//
// docs/design.md lists the tests. This package exports nothing.
package invariants
