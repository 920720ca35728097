// Package queue decides what happens when there is not enough room for all
// requests: which wait, in what order they go, and which are turned away.
//
// Queue stands in front of a router and holds requests while a Saturation says
// that the endpoints are full. It is a state machine without clock, goroutine
// or lock: its owner calls it with the time, under a lock of its own, when a
// request comes, when one ends and at Queue.NextExpiry. Package transport does
// this; see its QueueConfig.
//
// Utilization and Concurrency measure saturation, from the engines' reports
// and from the router's own counts, over the candidates of Router.AppendCandidates. They
// count a request once it is routed: pop one, route it, measure again.
//
// Without a queue, or in addition to one, a policy can reject requests
// through admitters: RejectSheddable rejects sheddable requests while the endpoints
// are full, TokenBucket what exceeds a rate, and RejectAll everything.
//
// Queue and admission follow BLIS (docs/results.md).
package queue
