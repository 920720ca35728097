package transport

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/dialect"
)

// A stream that breaks off goes on at another endpoint whose engine continues a text: that is one
// more attempt of the call, at the rest of the response. The client sees one stream.

// continues reports whether an endpoint can go on with what another one has begun.
func continues(e *endpick.Endpoint) bool { return e.Engine == "vllm" || e.Engine == "sglang" }

// save reports whether the request is saved while its response is passed on. As much is saved as is held.
func (a *Attempt) save() bool {
	c := a.call
	if c.t == nil || !c.parsed.Resumable() || !c.repeatable() || c.d.config.MaxAttempts == 1 || !continues(a.lease.Endpoint()) {
		return false
	}
	if c.saved > 0 {
		return true // as an earlier attempt has found
	}
	n := int64(c.memory())
	if n > maxHeld {
		return false
	}
	if c.t.saved.Add(n) > maxHeldInAll {
		c.t.saved.Add(-n)
		return false
	}
	c.saved = n
	return true
}

// drop lets go of what was saved.
func (c *Call) drop() {
	if c.saved > 0 {
		c.t.saved.Add(-c.saved)
		c.saved = 0
		c.forget()
	}
}

// resume finds another endpoint for the rest of a response whose attempt has failed while it was
// passed on, and reports whether it goes on there.
func (b *body) resume() bool {
	c, t := b.a.call, b.a.call.t
	if !c.askForRest(b.a) {
		return false
	}
	defer c.giveUp()
	defer func() {
		if v := recover(); v != nil { // as in RoundTrip
			c.abort()
			panic(v)
		}
	}()
	for {
		next, err := t.route(c)
		if err != nil {
			return false
		}
		next.resumes()
		p := newPayload(c.Body())
		r := t.send(c, next, p)
		p.release()
		if r.err == nil && b.readOn(next, r) {
			return true
		}
		r.discard()
		if r.err == nil || !next.Again() {
			return false
		}
	}
}

// askForRest makes the call one for the rest of what a has begun, if that can be had.
func (c *Call) askForRest(a *Attempt) bool {
	c.mu.Lock()
	defer c.unlock()
	if c.saved == 0 || c.deaths >= maxDeaths || c.attempts >= c.d.config.MaxAttempts {
		return false
	}
	parsed := c.parsed.Resume(a.meter)
	if parsed == nil || !c.d.budget.Retry(c.d.now()) {
		return false
	}
	c.parsed, c.alias = parsed, nil // the rest is the same model's
	c.Request.Receipt = nil         // the host may be reading that of the first decision
	for _, e := range c.d.config.Router.Endpoints() {
		if other := e.Candidate.Endpoint; !continues(other) {
			c.exclude = append(c.exclude, other.ID)
		}
	}
	return true
}

// resumes marks an attempt at the rest of a response.
func (a *Attempt) resumes() {
	a.call.mu.Lock()
	defer a.call.unlock()
	if a.observed != nil {
		a.observed.Resumes = true
	}
}

// readOn reads from another attempt's response from now on, unless that is no stream, or nobody reads any more.
func (b *body) readOn(next *Attempt, r reply) bool {
	rest, ok := r.response.Body.(*body)
	if !ok || dialect.ContentType(r.response.Header) != dialect.EventStream {
		return false
	}
	c := next.call
	c.mu.Lock()
	if b.closed {
		c.unlock()
		return false
	}
	b.a, b.src, b.from = next, rest.src, rest.from
	c.unlock()
	c.answer(next)
	c.t.resumed.Add(1)
	return true
}
