// Package invariants holds the tests of what always holds: each a property of a
// real router with a real index, predictor and latency targets together, over
// random interleavings of everything that may happen to it. What holds within one
// package is tested there; here is what holds between them.
//
// docs/design.md lists the tests. This package exports nothing.
package invariants
