// Package choose takes a request from endpoint to endpoint until one has served it.
// It sends nothing: the sender, an http.RoundTripper or a host with connections of
// its own, asks where to send the request, and reports the result.
package choose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/dialect"
	"github.com/endpick/endpick/transport/internal/health"
)

// Desk is what all trips share. It is safe for concurrent use.
type Desk struct {
	Router *endpick.Router
	Reader *dialect.Reader
	Health *health.Health
	Budget *health.Budget
	// MaxAttempts is how many endpoints one request is sent to at most.
	MaxAttempts int
	Clock       func() time.Time
	// Denied counts attempts that were refused for lack of budget.
	Denied atomic.Uint64
}

// retryRefill is the share of the retry burst that is refilled each second.
const retryRefill = 0.1

// NewBudget is the retry budget of Config.RetryShare and RetryBurst.
func NewBudget(share float64, burst int) *health.Budget {
	return health.NewBudget(share, retryRefill*float64(burst), float64(burst))
}

// Trip is one request, over all attempts. It is not safe for concurrent use.
type Trip struct {
	Desk    *Desk
	Request endpick.Request
	Method  string
	// Inert says that the request is known to do nothing but compute a response: its
	// API is known, and the engine runs no tools for it.
	Inert    bool
	Attempts int
	// Alone says that the sender asks only one endpoint.
	Alone bool

	exclude []string // endpoints that have failed the request, or can't serve it
	failed  []failedVisit
}

// Kind says how an attempt has failed.
type Kind uint8

// The kinds of failure.
const (
	Unreachable Kind = iota // the endpoint has not seen the request
	Broken                  // no answer, or none in time
	Erred                   // 5xx, or an error as the first event
	Full                    // 429: the endpoint has not begun
	Refusal                 // any other status from 400 on
)

// begun reports whether the endpoint may have started to work on the request. It may
// have before a 503, too: a proxy in front of it answers that if a connection breaks
// after the request was sent.
func (k Kind) begun() bool { return k != Unreachable && k != Full }

// Status is the lease status for this kind of failure.
func (k Kind) Status() endpick.Status {
	if k == Full || k == Refusal {
		return endpick.Refused
	}
	return endpick.Failed
}

// KindOf classifies a status. What an endpoint will never do is a refusal.
func KindOf(status int) Kind {
	switch {
	case status == http.StatusTooManyRequests:
		return Full
	case status < 500, status == http.StatusNotImplemented, status == http.StatusHTTPVersionNotSupported:
		return Refusal
	}
	return Erred
}

// Exclude excludes endpoints from now on.
func (t *Trip) Exclude(ids ...string) { t.exclude = append(t.exclude, ids...) }

// Prompt reads the prompt of the call into the trip's request; the host has set
// what it knows. The error is that of [dialect.Call.Prompt].
func (t *Trip) Prompt(ctx context.Context, call *dialect.Call) error {
	err := call.Prompt(ctx)
	t.Inert, t.Request = call.Inert(), call.Request
	if err != nil {
		return err
	}
	call.Request.Blocks = nil // the trip's own blocks are dropped when the response arrives
	t.exclude = slices.Clone(t.Request.Exclude)
	if id := call.Endpoint(); id != "" {
		if others, found := t.allBut(id); found { // if it is gone, any endpoint can answer that there is no such thing
			t.exclude = append(t.exclude, others...)
		}
	}
	return nil
}

// allBut returns all endpoints but one, and whether that one exists.
func (t *Trip) allBut(id string) (others []string, found bool) {
	for _, e := range t.Desk.Router.Endpoints() {
		if other := e.Candidate.Endpoint.ID; other != id {
			others = append(others, other)
		} else {
			found = found || !e.Removed // one that is removed may be listed beside its successor
		}
	}
	return others, found
}

// Route chooses an endpoint that has not failed the request yet. It avoids
// unhealthy endpoints unless there are no others, and those that are known to hang
// even then. The error is that of [endpick.Router.Route]; if endpoints hang, it says
// how many.
func (t *Trip) Route() (endpick.Lease, error) {
	avoid, inVain := t.Desk.Health.Avoid(nil, nil)
	t.Request.Exclude, t.Request.Avoid = t.exclude, avoid
	if len(inVain) > 0 {
		t.Request.Exclude = slices.Concat(t.exclude, inVain)
	}
	lease, err := t.Desk.Router.Route(t.Request)
	if err != nil && len(inVain) > 0 && errors.Is(err, endpick.ErrNoEndpoints) {
		err = fmt.Errorf("%w; endpoints that are unhealthy and do not answer: %d", err, len(inVain))
	}
	return lease, err
}

// Adopt opens a lease for a request that is under way at an endpoint that somebody
// else has chosen. The error is that of [endpick.Router.Route].
func (t *Trip) Adopt(id string) (endpick.Lease, error) {
	req := t.Request
	req.Receipt, req.Adopted = nil, &endpick.Adopted{Endpoint: id}
	return t.Desk.Router.Route(req)
}

// Repeatable reports whether the request may be sent again after an endpoint may have
// worked on it. What a POST to an unknown API does is unknown, even if it names a model:
// it may start a fine-tuning or send a mail (RFC 9110, section 9.2.2). PUT and DELETE are
// idempotent on one server only, and the retry would go to another.
func (t *Trip) Repeatable() bool {
	if t.Inert {
		return true
	}
	switch t.Method {
	case "GET", "HEAD", "OPTIONS", "TRACE", "":
		return true
	}
	return false
}

// HasOthers reports whether the request could go to another endpoint that is not
// out. It examines all of them, so it is only for requests in trouble.
func (t *Trip) HasOthers(id string) bool {
	name := cmp.Or(t.Request.Adapter, t.Request.Model)
	for _, e := range t.Desk.Router.Endpoints() {
		other := e.Candidate.Endpoint
		serves := name == "" || len(other.Models)+len(other.Adapters) == 0 ||
			slices.Contains(other.Models, name) || slices.Contains(other.Adapters, name)
		if serves && !e.Draining && !e.Removed && other.ID != id &&
			!slices.Contains(t.exclude, other.ID) && !t.Desk.Health.IsOut(other.ID) {
			return true
		}
	}
	return false
}

// StatusError is the failure of an endpoint that answered with a status from 400 on.
type StatusError int

func (e StatusError) Error() string {
	return fmt.Sprintf("answered %d %s", int(e), http.StatusText(int(e)))
}

// ErrFirstEvent is the failure of an endpoint whose stream began with an error.
var ErrFirstEvent = errors.New("answered with an error event")

// SetHeader sets the headers that an endpoint needs besides the body. Metered
// responses must be uncompressed.
func SetHeader(h http.Header, metered bool, e *endpick.Endpoint) {
	if metered {
		h.Set("Accept-Encoding", "identity")
	}
	if e.Ranked {
		h.Set("X-Data-Parallel-Rank", strconv.Itoa(e.Rank))
	}
}

// IsDial reports whether a connection could not even be made.
func IsDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
