// Package slo routes requests by the latencies that their clients ask for, and
// decides what happens when there is not enough room for all of them.
//
// Targets come from code ([endpick.SLO]) or from headers ([FromHeader]). A
// target that is zero or less is not asked for.
//
// [Headroom] measures how far a prediction stays below the targets: of the
// request, and of the requests that run on an endpoint already. The stages of a
// policy share one:
//
//   - [LatencyAdmitter] rejects a sheddable request that no endpoint can serve
//     in time,
//   - [Tier] is the filter that keeps the endpoints which meet the SLO,
//   - [BestFit] is the scorer, by headroom with an SLO and by latency without.
//
// [Warmup] is a filter that brings new endpoints in by a ramp. Other admitters
// are [TokenBucket], [SaturationAdmitter] and [RejectAll].
//
// [Queue] stands before a router and holds requests while a [Saturation] says
// that the endpoints are full. It is a state machine without clock, goroutine
// or lock: its holder calls it with the time, under a lock of its own, when a
// request comes, when one ends and at [Queue.NextExpiry].
//
// Formulas are those of Predicted Latency and
// GIE; admission and queue follow BLIS.
package slo
