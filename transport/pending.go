package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/dialect"
	"github.com/endpick/endpick/transport/internal/health"
)

// retryRefill is the share of the retry burst that is refilled each second.
const retryRefill = 0.1

// newBudget is the retry budget of Config.RetryShare and RetryBurst.
func newBudget(share float64, burst int) *health.Budget {
	return health.NewBudget(share, retryRefill*float64(burst), float64(burst))
}

// pending is a request on its way from endpoint to endpoint until one has served it. It
// sends nothing: a [Transport], or the program behind a [Call], asks it where to send the
// request, and reports the result. It is not safe for concurrent use.
type pending struct {
	d       *Dispatcher
	request endpick.Request
	method  string
	// harmless says that the request is known to do nothing but compute a response: its
	// API is known, and the engine runs no tools for it.
	harmless bool
	attempts int
	// single says that the sender asks only one endpoint.
	single bool

	exclude []string // endpoints that have failed the request, or can't serve it
	failed  []failedAttempt
}

// failedAttempt is an attempt of which it is not known yet whether its endpoint is at
// fault: that shows when the request has been retried elsewhere, or can't be.
type failedAttempt struct {
	health.Attempt
	result Result
}

// begun reports whether the endpoint may have started to work on a request that has
// failed. It may have before a 503, too: a proxy in front of it answers that if a
// connection breaks after the request was sent.
func (r Result) begun() bool { return r != Unreachable && r != Full }

// status is the lease status for this kind of failure.
func (r Result) status() endpick.Status {
	if r == Full || r == Refused {
		return endpick.Refused
	}
	return endpick.Failed
}

// resultOf classifies a status. What an endpoint will never do is a refusal.
func resultOf(status int) Result {
	switch {
	case status == http.StatusTooManyRequests:
		return Full
	case status < 500, status == http.StatusNotImplemented, status == http.StatusHTTPVersionNotSupported:
		return Refused
	}
	return Erred
}

// read reads the prompt of the call into the request; the host has set what it knows. The
// error is that of [dialect.Call.Prompt].
func (p *pending) read(ctx context.Context, call *dialect.Call) error {
	err := call.Prompt(ctx)
	p.harmless, p.request = call.Inert(), call.Request
	if err != nil {
		return err
	}
	call.Request.Blocks = nil // p has its own, which are dropped when the response arrives
	p.exclude = slices.Clone(p.request.Exclude)
	if id := call.Endpoint(); id != "" {
		if others, found := p.allBut(id); found { // if it is gone, any endpoint can answer that there is no such thing
			p.exclude = append(p.exclude, others...)
		}
	}
	return nil
}

// allBut returns all endpoints but one, and whether that one exists.
func (p *pending) allBut(id string) (others []string, found bool) {
	for _, e := range p.d.config.Router.Endpoints() {
		if other := e.Candidate.Endpoint.ID; other != id {
			others = append(others, other)
		} else {
			found = found || !e.Removed // one that is removed may be listed beside its successor
		}
	}
	return others, found
}

// choose chooses an endpoint that has not failed the request yet. It avoids
// unhealthy endpoints unless there are no others, and those that are known to hang
// even then. The error is that of [endpick.Router.Route]; if endpoints hang, it says
// how many.
func (p *pending) choose() (endpick.Lease, error) {
	avoid, hanging := p.d.health.Avoid(nil, nil)
	p.request.Exclude, p.request.Avoid = p.exclude, avoid
	if len(hanging) > 0 {
		p.request.Exclude = slices.Concat(p.exclude, hanging)
	}
	lease, err := p.d.config.Router.Route(p.request)
	if err != nil && len(hanging) > 0 && errors.As(err, new(*endpick.NoEndpointError)) {
		err = fmt.Errorf("%w; endpoints that are unhealthy and do not answer: %d", err, len(hanging))
	}
	return lease, err
}

// adopt opens a lease for a request that is under way at an endpoint that somebody
// else has chosen. The error is that of [endpick.Router.Route].
func (p *pending) adopt(id string) (endpick.Lease, error) {
	req := p.request
	req.Receipt, req.Adopted = nil, &endpick.Adopted{Endpoint: id}
	return p.d.config.Router.Route(req)
}

// repeatable reports whether the request may be sent again after an endpoint may have
// worked on it. What a POST to an unknown API does is unknown, even if it names a model:
// it may start a fine-tuning or send a mail (RFC 9110, section 9.2.2). PUT and DELETE are
// idempotent on one server only, and the retry would go to another.
func (p *pending) repeatable() bool {
	if p.harmless {
		return true
	}
	switch p.method {
	case "GET", "HEAD", "OPTIONS", "TRACE", "":
		return true
	}
	return false
}

// hasOthers reports whether the request could go to another endpoint that is not
// out. It examines all of them, so it is only for requests in trouble.
func (p *pending) hasOthers(id string) bool {
	name := cmp.Or(p.request.Adapter, p.request.Model)
	for _, e := range p.d.config.Router.Endpoints() {
		other := e.Candidate.Endpoint
		serves := name == "" || len(other.Models)+len(other.Adapters) == 0 ||
			slices.Contains(other.Models, name) || slices.Contains(other.Adapters, name)
		if serves && !e.Draining && !e.Removed && other.ID != id &&
			!slices.Contains(p.exclude, other.ID) && !p.d.health.IsOut(other.ID) {
			return true
		}
	}
	return false
}

// statusError is the failure of an endpoint that answered with a status from 400 on.
type statusError int

func (e statusError) Error() string {
	return fmt.Sprintf("answered %d %s", int(e), http.StatusText(int(e)))
}

// errFirstEvent is the failure of an endpoint whose stream began with an error.
var errFirstEvent = errors.New("answered with an error event")

// setHeader sets the headers that an endpoint needs besides the body. Metered
// responses must be uncompressed.
func setHeader(h http.Header, metered bool, e *endpick.Endpoint) {
	if metered {
		h.Set("Accept-Encoding", "identity")
	}
	if e.Ranked {
		h.Set("X-Data-Parallel-Rank", strconv.Itoa(e.Rank))
	}
}

// fail records that an attempt has failed.
func (p *pending) fail(a health.Attempt, result Result) {
	switch result {
	case Unreachable:
		p.d.health.Failed(a, true)
	case Full:
		p.d.health.Full(a)
	default:
		p.failed = append(p.failed, failedAttempt{a, result})
	}
}

// retry decides whether to make another attempt after a failed one, and pays for
// it unless that is paid.
func (p *pending) retry(ctx context.Context, a health.Attempt, result Result, paid bool) bool {
	switch {
	case ctx.Err() != nil, p.attempts >= p.d.config.MaxAttempts:
		return false
	case result == Unreachable:
		return true // no endpoint has worked on it, so it costs nothing
	case result.begun() && !p.repeatable():
		return false
	case result == Refused:
		return p.d.health.Refused(a)
	case !paid && !p.d.budget.Retry(p.d.now()):
		p.d.denied.Add(1)
		return false
	}
	return true
}

// report reports the attempts to health, when the request has been served or given
// up.
func (p *pending) report(served bool) {
	h := p.d.health
	for _, f := range p.failed {
		switch {
		case served:
			h.Failed(f.Attempt, false)
		case len(p.failed) > 1:
			h.Undecided(f.Attempt)
		case p.single, f.result != Refused && !p.repeatable():
			h.Failed(f.Attempt, false) // no other endpoint can be asked
		}
	}
	p.failed = nil
}
