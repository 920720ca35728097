package transport

import (
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/choose"
	"github.com/endpick/endpick/transport/observed"
	"github.com/endpick/endpick/transport/recording"
)

// sighting collects what Config.Observe will be passed; nil if it is not set.
// Only one goroutine uses it at a time: that of RoundTrip until the response is
// handed over, then the one that ends it.
type sighting struct {
	ready    time.Time // when the request could first be routed; zero: there is no queue
	asked    time.Time // when the router was last asked; zero: never
	decision time.Duration
	held     time.Duration
	err      error
	attempts []observed.Attempt
}

// routed records when the router was asked, and that it has answered by now.
func (s *sighting) routed(asked, now time.Time) {
	if s.asked.IsZero() && !s.ready.IsZero() {
		s.held = max(asked.Sub(s.ready), 0)
	}
	s.asked, s.decision = asked, max(now.Sub(asked), 0)
}

// sent records where the request goes.
func (s *sighting) sent(e *endpick.Endpoint, c endpick.Candidate) {
	c.Endpoint = e // the candidate of a lease that is closed by now is empty
	s.attempts = append(s.attempts, observed.Attempt{Candidate: c, At: s.asked, Decision: s.decision})
}

var results = [...]observed.Result{
	choose.Unreachable: observed.Unreachable, choose.Broken: observed.Broken, choose.Erred: observed.Erred, choose.Full: observed.Full, choose.Refusal: observed.Refused,
}

// answered records the result of the last attempt so far.
func (s *sighting) answered(a *attempt, gone bool) {
	seen := &s.attempts[len(s.attempts)-1]
	seen.HTTP, seen.Err = a.x.http, a.failure
	switch {
	case a.failure == nil:
		seen.Result = observed.Served
	case gone:
		seen.Result = observed.Canceled
	default:
		seen.Result = results[a.kind]
	}
}

// observe reports a request that has ended; x is nil if it was never sent.
func (tr *trip) observe(x *exchange, r recording.Request) {
	s := tr.seen
	o := &observed.Request{
		Request: r, In: tr.in, Tenant: tr.Request.Tenant, Err: s.err, Held: s.held, Attempts: s.attempts, Serving: -1,
	}
	if x == nil && s.asked.IsZero() && !s.ready.IsZero() {
		o.Held = max(tr.t.now().Sub(s.ready), 0) // never routed
	}
	if x != nil {
		o.Serving = x.number
		if last := &s.attempts[x.number]; last.Result == observed.Served {
			switch r.Status {
			case endpick.Failed.String():
				last.Result, last.Err = observed.Broken, x.why()
			case endpick.Canceled.String():
				last.Result = observed.Canceled
			}
		}
	}
	defer tr.t.guard(tr.in, "Config.Observe")
	tr.t.config.Observe(o)
}
