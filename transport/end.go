package transport

import (
	"net/http"
	"slices"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/recording"
)

// story is what a Transport's host learns of a call when it has ended: a record
// (Config.Record), and an [Observation] (Config.Observe). The queue learns what it has cost.
type story struct {
	start     time.Time
	asked     time.Time // when the router was last asked; zero: never
	decision  time.Duration
	held      time.Duration
	slo       endpick.SLO       // as the client asked; Request.SLO is what is left after waiting
	model     string            // that was asked for or, if that is a name, that has been chosen
	named     string            // the name; empty: none
	passed    []error           // why models before it had no server
	maxTokens int               // the client's limit
	sketch    *recording.Prompt // nil: none
	salt      recording.Hash
	attempts  []*Attempt

	answer *Attempt // the client gets what this one has to say; nil: none was made
	err    error    // the client gets this instead
	status endpick.Status
	ended  bool // and not reported yet
}

// observes reports whether the times of decisions matter.
func (c *Call) observes() bool { return c.in != nil && c.d.config.Observe != nil }

// sentTo records where the request goes.
func (c *Call) sentTo(a *Attempt, e *endpick.Endpoint, candidate endpick.Candidate) {
	if !c.observes() {
		return
	}
	candidate.Endpoint = e // the candidate of a lease that is closed by now is empty
	a.observed = &ObservedAttempt{Candidate: candidate, At: c.story.asked, Decision: c.story.decision}
	c.story.attempts = append(c.story.attempts, a)
}

// answer makes the response of an attempt the one that the client gets: its end is that of the
// call.
func (c *Call) answer(a *Attempt) {
	c.mu.Lock()
	defer c.unlock()
	if c.saved == 0 {
		c.forget()
	}
	c.story.answer = a
	if a.stage >= failed {
		if a.unended {
			a.endedAt = c.d.now() // the client has waited for a rest in vain
		}
		c.end(a, a.status, nil)
		if a.http == 0 { // the response has come when the client had left
			c.story.err = a.ctx.Err()
		}
	}
}

// fail ends the call with an error for the client; a is nil if the request was never sent.
func (c *Call) fail(a *Attempt, err error) {
	c.mu.Lock()
	defer c.unlock()
	status := endpick.Failed
	switch {
	case c.in.Context().Err() != nil:
		status = endpick.Canceled
	case StatusOf(err) < http.StatusInternalServerError:
		status = endpick.Refused // by the gateway
	}
	c.end(a, status, err)
}

func (c *Call) end(a *Attempt, status endpick.Status, err error) {
	c.settle(a, status)
	s := &c.story
	s.answer, s.status, s.err, s.ended = a, status, err, true
}

// settle lets go of the request, and charges the tenant in the queue for what the request has really taken.
func (c *Call) settle(a *Attempt, status endpick.Status) {
	c.drop()
	if c.charged == nil {
		return
	}
	input, output := 0, 0
	if a != nil {
		seen := a.meter.Seen()
		input, output = c.Request.InputTokens, seen.OutputTokens
		if seen.Reported {
			input = seen.InputTokens
		}
		if (status == endpick.Failed || status == endpick.Refused) && output == 0 {
			input = 0
		}
	}
	c.t.queue.settle(c.charged.item, input, output)
	c.charged = nil
}

// unlock releases c.mu, and calls the host back if the call has just ended.
func (c *Call) unlock() {
	var o *Observation
	if c.story.ended && (c.d.config.Record != nil || c.d.config.Observe != nil) {
		o = c.observation()
	}
	c.story.ended = false
	c.mu.Unlock()
	if o == nil {
		return
	}
	if c.d.config.Observe != nil {
		func() {
			defer c.d.guard(c.in, "Config.Observe")
			c.d.config.Observe(o)
		}()
	}
	if c.d.config.Record != nil {
		defer c.d.guard(c.in, "Config.Record")
		r := o.Request
		r.Blocks = make([]recording.Hash, len(c.Request.Blocks))
		for i, b := range c.Request.Blocks {
			r.Blocks[i] = recording.Hash(b)
		}
		c.d.config.Record(r)
	}
}

// observation is what the host learns.
func (c *Call) observation() *Observation {
	s, req, a := &c.story, &c.Request, c.story.answer
	o := &Observation{
		In: c.in, Tenant: req.Tenant, Named: s.named, Passed: s.passed, Receipt: req.Receipt,
		Err: s.err, Held: s.held, Serving: slices.Index(s.attempts, a),
	}
	for _, a := range s.attempts {
		seen := *a.observed
		seen.HTTP, seen.Result, seen.Err = a.http, a.result, a.err
		o.Attempts = append(o.Attempts, seen)
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	r := &o.Request
	*r = recording.Request{
		Version: recording.Version, Prompt: s.sketch, Salt: s.salt, Adapter: req.Adapter,
		Time: s.start, Model: s.model, Status: s.status.String(), Attempts: c.attempts,
		Stream: req.Stream, InputTokens: req.InputTokens, Estimated: true, MaxTokens: s.maxTokens, Responses: req.Responses,
		BlockTokens: req.BlockTokens, Tenant: recording.NameHash(req.Tenant), Session: recording.NameHash(req.Session),
		Priority: req.Priority, SLOTTFTMillis: ms(s.slo.TTFT), SLOTPOTMillis: ms(s.slo.TPOT),
	}
	end := c.d.now()
	if a != nil {
		if s.err == nil {
			r.HTTP = max(a.client, a.http)
		}
		if !a.endedAt.IsZero() {
			end = a.endedAt
		}
		seen := a.meter.Seen()
		r.Endpoint, r.OutputTokens, r.CachedTokens = a.lease.Endpoint().ID, seen.OutputTokens, seen.CachedTokens
		if seen.Reported {
			r.InputTokens, r.Estimated = seen.InputTokens, false
		}
		if !seen.FirstToken.IsZero() {
			ttft := ms(seen.FirstToken.Sub(s.start))
			r.TTFTMillis = &ttft
		}
	}
	if r.HTTP >= http.StatusInternalServerError && s.status == endpick.Refused { // of a full server
		r.Status = endpick.Failed.String()
	}
	r.E2EMillis = ms(end.Sub(s.start))
	return o
}
