// Package slo routes requests by the latencies that their clients ask for.
//
// Targets come from code ([endpick.SLO]) or from headers ([FromHeader]). A
// target of zero or less means that there is none.
//
// [Headroom] measures how far a prediction stays below the targets, both the
// request's own and those of the requests that are already running on an
// endpoint. The stages of a policy share one:
//
//   - [NewLatencyAdmitter] rejects a sheddable request that no endpoint can serve
//     in time,
//   - [NewTier] is the filter to the endpoints which meet the SLO,
//   - [NewBestFit] is the scorer, by headroom with an SLO and by latency without.
//
// [NewWarmup] is a filter that brings new endpoints in gradually.
//
// Package slo/delay is a scorer for requests with and without targets, and a
// predictor of what these stages measure. Package slo/queue decides what happens
// when there is not enough room for all requests. The formulas are those of
// Predicted Latency and GIE (docs/results.md).
package slo
