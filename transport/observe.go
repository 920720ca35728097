package transport

import (
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/recording"
)

// observer collects what Config.Observe will be passed; nil if it is not set.
// Only one goroutine uses it at a time: that of RoundTrip until the response is
// handed over, then the one that ends it.
type observer struct {
	ready    time.Time // when the request could first be routed; zero: there is no queue
	asked    time.Time // when the router was last asked; zero: never
	decision time.Duration
	held     time.Duration
	err      error
	attempts []ObservedAttempt
}

// routed records when the router was asked, and that it has answered by now.
func (o *observer) routed(asked, now time.Time) {
	if o.asked.IsZero() && !o.ready.IsZero() {
		o.held = max(asked.Sub(o.ready), 0)
	}
	o.asked, o.decision = asked, max(now.Sub(asked), 0)
}

// sent records where the request goes.
func (o *observer) sent(e *endpick.Endpoint, c endpick.Candidate) {
	c.Endpoint = e // the candidate of a lease that is closed by now is empty
	o.attempts = append(o.attempts, ObservedAttempt{Candidate: c, At: o.asked, Decision: o.decision})
}

// answered records the result of the last attempt so far.
func (o *observer) answered(a *answer, gone bool) {
	seen := &o.attempts[len(o.attempts)-1]
	seen.HTTP, seen.Err = a.x.http, a.failure
	switch {
	case a.failure == nil:
		seen.Result = Served
	case gone:
		seen.Result = Canceled
	default:
		seen.Result = a.result
	}
}

// observe reports a request that has ended; x is nil if it was never sent.
func (rt *roundTrip) observe(x *exchange, r recording.Request) {
	o := rt.observer
	seen := &Observation{
		Request: r, In: rt.in, Tenant: rt.request.Tenant, Err: o.err, Held: o.held, Attempts: o.attempts, Serving: -1,
	}
	if x == nil && o.asked.IsZero() && !o.ready.IsZero() {
		seen.Held = max(rt.t.d.now().Sub(o.ready), 0) // never routed
	}
	if x != nil {
		seen.Serving = x.number
		if last := &o.attempts[x.number]; last.Result == Served {
			switch r.Status {
			case endpick.Failed.String():
				last.Result, last.Err = Broken, x.why()
			case endpick.Canceled.String():
				last.Result = Canceled
			}
		}
	}
	defer rt.t.d.guard(rt.in, "Config.Observe")
	rt.t.config.Observe(seen)
}
