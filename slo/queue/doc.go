// Package queue decides what happens when there is not enough room for all
// requests: which wait, in what order they go, and which are turned away.
//
// [Queue] stands before a router and holds requests while a [Saturation] says
// that the endpoints are full. It is a state machine without clock, goroutine
// or lock: its holder calls it with the time, under a lock of its own, when a
// request comes, when one ends and at [Queue.NextExpiry]. Package transport has
// such a holder; see its QueueConfig.
//
// [Utilization] and [Concurrency] measure saturation, by the engines' reports
// and by the router's own account.
//
// Without a queue, or behind one, a policy rejects requests through its
// admitters: [Admitter] those that can be shed while the endpoints are full,
// [TokenBucket] what comes faster than a rate, [RejectAll] everything.
//
// Queue and admission follow BLIS.
package queue
