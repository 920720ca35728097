package transport

import (
	"cmp"
	"errors"
	"net/http"
	"slices"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/health"
	"github.com/endpick/endpick/transport/internal/host"
)

// maxDeaths is at how many servers a request may be that break off: a prompt that fells servers
// must not fell them all.
const maxDeaths = 2

// Again reports whether the request should be sent to another endpoint, which Route
// then chooses; if so, it counts against the retry budget. Call it once after a
// failure, before passing on any of the response.
func (a *Attempt) Again() bool {
	c := a.call
	c.mu.Lock()
	defer c.unlock()
	if a.stage != failed {
		return false
	}
	a.stage = over
	if a.overasked {
		return a.ctx.Err() == nil
	}
	c.single = c.d.config.MaxAttempts == 1
	if a.result == Refused {
		c.suspects.Add(a.health.Because(a.err), a.result)
	}
	switch {
	case a.ctx.Err() != nil, c.single, c.deaths >= maxDeaths:
		return false
	case a.result == Unreachable && c.d.sleeps(a.lease.Endpoint()):
		return true // as long as it may wait
	case c.attempts >= c.d.config.MaxAttempts: // many may be dead, of whom nobody knows, beside one that lives
		return a.result == Unreachable && !host.IsTimeout(a.err) && !a.health.WasOut()
	case a.result == Unreachable:
		return true // no endpoint has worked on it, so it costs nothing
	case a.http != http.StatusTooManyRequests && (a.http != http.StatusNotFound || c.parsed.RefersTo() == "") && !c.repeatable():
		return false // it may have begun, before a 503 too: a proxy answers that if a connection breaks
	case a.result == Refused:
		return a.health.Ended(Refused)
	case !a.paid && !c.d.budget.Retry(c.d.now()):
		c.d.denied.Add(1)
		return false
	}
	return true
}

// repeatable reports whether the request may be sent again after an endpoint may have
// worked on it. What a POST to an unknown API does is unknown, even if it names a model:
// it may start a fine-tuning or send a mail (RFC 9110, section 9.2.2). PUT and DELETE are
// idempotent on one server only, and the retry would go to another.
func (c *Call) repeatable() bool {
	return c.harmless || slices.Contains([]string{"GET", "HEAD", "OPTIONS", "TRACE", ""}, c.method)
}

// failLatest makes way for another attempt.
func (c *Call) failLatest() {
	if a := c.latest; a != nil {
		_ = a.fail(Broken, errUnreported)
		if a.overasked {
			return
		}
		c.single = false
		if a.result == Unreachable && c.d.sleeps(a.lease.Endpoint()) {
			return // it may be asked again when it is awake
		}
		before := len(c.failed)
		c.failed = append(c.failed, a.lease.Endpoint().ID)
		if a.result == Refused { // so will the other ranks of the server
			at := a.lease.Endpoint().Address
			for _, e := range c.d.config.Router.Endpoints() {
				if other := e.Candidate.Endpoint; at != "" && other.Address == at {
					c.failed = append(c.failed, other.ID)
				}
			}
		}
		c.exclude = append(c.exclude, c.failed[before:]...)
	}
}

// model is what the endpoint must have: the adapter or the model.
func (c *Call) model() string { return cmp.Or(c.Request.Adapter, c.Request.Model) }

// giveUp reports to health who has failed the request, if nobody has served it. A single endpoint
// is at fault if no other could be asked.
func (c *Call) giveUp() {
	c.suspects.GivenUp(func(r Result) bool { return r != Refused && (c.single || !c.repeatable()) })
}

// stuck reports whether a request that has waited for long should go to another endpoint, and pays
// for that. It does so once, because a prompt may simply take its time.
func (a *Attempt) stuck() bool {
	c := a.call
	if c.gaveUp || c.attempts >= c.d.config.MaxAttempts || !c.repeatable() ||
		!a.health.Stuck() || len(c.others(a.lease.Endpoint().ID)) == 0 {
		return false
	}
	a.paid = c.d.budget.Retry(c.d.now())
	c.gaveUp = a.paid
	return a.paid
}

// others are the endpoints but one to which the request could go, which are neither out nor
// silent. It examines all of them, so it is only for requests in trouble.
func (c *Call) others(id string) (all []*endpick.Endpoint) {
	name := c.model()
	for _, e := range c.d.config.Router.Endpoints() {
		other := e.Candidate.Endpoint
		room := other.MaxInFlight == 0 || e.Candidate.InFlight.Requests < other.MaxInFlight
		if health.Serves(other, name) && room && !e.Draining && !e.Removed && other.ID != id &&
			!slices.Contains(c.exclude, other.ID) && c.d.health.Answers(e.Candidate.Ref) {
			all = append(all, other)
		}
	}
	return all
}

// alternatives are the other candidates of the last decision, best first, followed by
// those that filters removed, which can serve the request as well, and those that were
// avoided, because they are coming back or the request is a trial of another. There are
// none if the request must not be sent twice, since a proxy also tries them after a
// connection has broken.
func (c *Call) alternatives(chosen string) (all []*endpick.Endpoint) {
	r, most := c.Request.Receipt, c.d.config.Fallbacks
	if most == 0 || !c.repeatable() {
		return nil
	}
	for i := range r.Verdicts {
		if i != r.Chosen {
			all = append(all, r.Verdicts[i].Candidate.Endpoint)
		}
	}
	if len(all) < most && (c.d.health.Troubled() || len(c.Request.Avoid) > 0) { // in peace nobody else is left
		all = append(all, slices.DeleteFunc(c.others(chosen), func(e *endpick.Endpoint) bool { return slices.Contains(all, e) })...)
	}
	return slices.Clip(all[:min(len(all), most)])
}

// abort must be deferred. It ends a call that has panicked, in Base, or in Route after a stage has
// overwritten what it must not, and lets the panic go on.
func (c *Call) abort() {
	v := recover()
	if v == nil {
		return
	}
	c.mu.Lock()
	if a := c.latest; a != nil {
		status := endpick.Failed
		if a.ctx.Err() != nil {
			status = endpick.Canceled
		}
		a.end(status)
		a.wait.stop()
		a.wait.cancel()
	}
	c.settle(nil, endpick.Failed)
	c.unlock()
	panic(v)
}

var errUnreported = errors.New("nothing was reported of it")
