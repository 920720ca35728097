// Package delay routes each request to where it causes the least delay in total,
// to itself and to others.
//
// A [Marginal] learns from the responses how long things take on each kind of
// server, predicts latencies from that, and scores candidates by the delay that
// the request would cause. The preset marginal-delay is made of it, with the
// filters of package slo for requests that have targets.
//
// The cost of a candidate, in milliseconds, is
//
//	w·TTFT + n·TPOT + n·s·BS + F·[ k·c·(BS + λ·min(k·F/2, E2E)) + e·k̄·(c·B + w) ] + n·TPOT·w·W·(F + n)/K
//
// The first two are the request's own latency. BS requests are there: each waits s
// longer for each of the n tokens, and for the F new tokens to be computed (where
// nobody is, those that most others lack, too), as do those who come meanwhile. What
// has to leave the cache for them is computed again later, and the memory that it
// takes keeps others waiting. See docs/marginal-delay.md, and cost.go.
package delay
