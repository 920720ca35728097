package transport

import (
	"bufio"
	"errors"
	"io"
	"net/url"

	"github.com/endpick/endpick/transport/internal/dialect"
)

// A stream that breaks off goes on at another endpoint whose engine continues a text: that is one
// more attempt of the call, at the rest of the response. The client sees one stream.

// save reports whether the request is saved while its response is passed on. As much is saved as is held.
func (a *Attempt) save() bool {
	c := a.call
	if c.t == nil || !c.parsed.Resumable() || !c.repeatable() || c.d.config.MaxAttempts == 1 || !c.parsed.ContinuedBy(a.lease.Endpoint().Engine) {
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
	defer c.abort()
	for {
		next, err := t.route(c)
		if err != nil {
			return false
		}
		next.resumes()
		r := reply{a: next, err: t.leavesOpen(c, next)}
		if r.err == nil {
			p := newPayload(c.Body())
			r = t.send(c, next, p)
			p.release()
		}
		if r.err == nil && b.readOn(next, r) {
			return true
		}
		r.discard()
		if r.err == nil || !next.Again() {
			return false
		}
	}
}

// errEnds is the failure of an endpoint that would begin another response instead of continuing one.
var errEnds = errors.New("the model's template ends what was said")

// leavesOpen asks an endpoint whether it continues what was said, if it may not. If it doesn't, the attempt has failed.
func (t *Transport) leavesOpen(c *Call, a *Attempt) error {
	c.mu.Lock()
	question := c.parsed.Rendering(a.lease.Endpoint().Engine)
	c.unlock()
	if question == nil {
		return nil
	}
	answer, err := t.render(c, a, question)
	switch {
	case err != nil:
		err = a.Fail(err)
	case !dialect.LeavesOpen(answer):
		c.mu.Lock()
		err = a.fail(Refused, errEnds)
		c.unlock()
	default:
		return nil
	}
	a.release()
	return err
}

// render returns the first line of Ollama's answer, which is all of it, or of a stream.
func (t *Transport) render(c *Call, a *Attempt, question []byte) ([]byte, error) {
	p := newPayload([][]byte{question})
	defer p.release()
	out, err := t.outgoing(a.wait.ctx, c, a.lease.Endpoint(), p)
	if err != nil {
		return nil, err
	}
	to, err := Target(a.lease.Endpoint(), &url.URL{Path: "/api/chat"})
	if err != nil {
		return nil, err
	}
	out.URL.Path, out.URL.RawPath, out.URL.RawQuery = to.Path, to.RawPath, ""
	response, err := t.over(out)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	line, err := bufio.NewReader(io.LimitReader(response.Body, maxHeld)).ReadBytes('\n')
	if err == io.EOF {
		err = nil
	}
	return line, err
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
	c.reading.TryLock()             // if it is not: the host may be reading the receipt of the first decision
	for _, e := range c.d.config.Router.Endpoints() {
		if other := e.Candidate.Endpoint; !parsed.ContinuedBy(other.Engine) {
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
	if !ok || !next.filters {
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
