// Package delay routes each request to where it causes the least delay in total,
// to itself and to others. There is nothing to tune.
//
// A [Marginal] learns from the responses how long things take on each kind of
// server, predicts latencies from that, and scores candidates by the delay that
// the request would cause. The preset marginal-delay is made of it, with the
// filters of package slo for requests that have targets.
//
// The derivation is in docs/marginal-delay.md.
package delay
