package transport

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport/internal/dialect"
	"github.com/endpick/endpick/transport/internal/health"
)

// Incoming is a request as it arrived.
type Incoming struct {
	Method, Path string
	Query        string      // raw query of the URL; /v1/realtime?model= names the model there
	Header       http.Header // keys in their canonical form
	// Body is the whole body, decompressed if it was in gzip or deflate, because
	// engines take no others. The [Call] refers to it until an endpoint has
	// answered: it must not change before the call is closed.
	Body []byte
}

// Call is one request, over all attempts. Its methods and those of its attempts are
// safe for concurrent use; Request and Warnings are not.
//
// It owns no connection: whoever does drives it. A [Transport] does so for net/http; other
// programs use a [Dispatcher].
//
//	Read ──► Route ──► Attempt ──► Header ──► Feed … ──► End
//	           ▲          │          │          │
//	           │          └── Fail ──┴───┬──────┘
//	           └─────────────────────── Again
//
// A call is read (this file), waits for room (queue.go, for a Transport), and is sent to one
// endpoint after the other until one serves it or it is given up (retry.go). An [Attempt] is the
// request at one endpoint: its lease, its meter, what health learns of it, and how long it may
// take (attempt.go, deadline.go). The response is passed on piece by piece (response.go). When it
// has ended, the host is told (end.go).
//
// One mutex guards a call and its attempts, because three goroutines end them: the one that passes
// the response on, the one that notices that the client has left, and the timer's. The host is
// told without it.
type Call struct {
	// Request is what will be routed. Read fills in the model, the session, the
	// priority and the targets; the first Route fills in the prompt's length and
	// blocks if they are missing. In between, set what your program knows better:
	// the tenant, the adapter, the length and the blocks, the endpoints to exclude,
	// and the receipt.
	Request endpick.Request
	// Warnings say what was wrong with headers, which are then treated as
	// absent.
	Warnings []error

	d        *Dispatcher
	method   string
	metered  bool
	unpacked bool // the body was compressed
	// harmless says that the request is known to do nothing but compute a response: its
	// API is known, and the engine runs no tools for it.
	harmless bool

	mu sync.Mutex // guards the fields below, and the attempts
	// parsed and body are dropped when an endpoint has answered: prompts are long,
	// and streams last.
	parsed *dialect.Call
	body   [][]byte
	ready  bool // the prompt has been read

	latest   *Attempt
	attempts int
	exclude  []string // endpoints that have failed the request, or can't serve it
	suspects health.Suspects
	single   bool // the sender asks only one endpoint
	gaveUp   bool // it gave up a stuck endpoint before the time limit
	receipt  endpick.Receipt

	// Of a Transport.
	in      *http.Request // nil: it is a Dispatcher's
	t       *Transport
	item    queue.Item[*queued] // as it left the queue
	charged bool                // its tenant has been charged, for the expected cost
	story   story
}

// Read reads a request, except for its prompt. The error is an [endpick.RequestError], a
// [BodyError], or matches [ErrRead], [ErrForbidden] or [ErrUnknownPath].
func (d *Dispatcher) Read(in Incoming) (*Call, error) {
	if n := int64(len(in.Body)); n > d.config.MaxBodyBytes {
		return nil, &BodyError{Limit: d.config.MaxBodyBytes, Length: n}
	}
	body, unpacked, err := unpack(context.Background(), in.Header, in.Body, d.config.MaxBodyBytes)
	if err != nil {
		return nil, err
	}
	in.Body = body
	c := &Call{d: d, single: true, unpacked: unpacked}
	if err := c.read(in); err != nil {
		return nil, err
	}
	d.budget.Request(d.now())
	return c, nil
}

// read reads all but the prompt.
func (c *Call) read(in Incoming) error {
	parsed, err := c.d.reader.Read(dialect.Incoming(in))
	c.method = in.Method
	if parsed != nil {
		c.parsed, c.Request, c.Warnings = parsed, parsed.Request, parsed.Warnings
		c.metered = parsed.Metered()
	}
	return err
}

// prompt reads the prompt; the host has set what it knows. The error is that of
// [dialect.Call.Prompt].
func (c *Call) prompt(ctx context.Context) error {
	c.parsed.Request = c.Request
	err := c.parsed.Prompt(ctx)
	c.harmless, c.Request = c.parsed.Inert(), c.parsed.Request
	if err != nil {
		return err
	}
	c.parsed.Request.Blocks = nil // c has its own, which are dropped when the response arrives
	c.exclude = slices.Clone(c.Request.Exclude)
	if id := c.parsed.Endpoint(); id != "" {
		if others, found := c.allBut(id); found { // if it is gone, any endpoint can answer that there is no such thing
			c.exclude = append(c.exclude, others...)
		}
	}
	c.body, c.ready, c.metered = c.parsed.Body(), true, c.parsed.Metered()
	return nil
}

// allBut returns all endpoints but one, and whether that one exists.
func (c *Call) allBut(id string) (others []string, found bool) {
	for _, e := range c.d.config.Router.Endpoints() {
		if other := e.Candidate.Endpoint.ID; other != id {
			others = append(others, other)
		} else {
			found = found || !e.Removed // one that is removed may be listed beside its successor
		}
	}
	return others, found
}

// Route chooses an endpoint for the request, or another one after the last has
// failed. If nothing was reported about the last attempt, it has failed. When ctx
// is done, the attempt ends by itself: as canceled, unless the response was
// complete.
//
// The error is an [endpick.NoEndpointError], an [endpick.RejectedError], an
// [endpick.RequestError] or that of ctx.
func (c *Call) Route(ctx context.Context) (*Attempt, error) {
	c.mu.Lock()
	defer c.unlock()
	switch {
	case !c.ready:
		if err := c.prompt(ctx); err != nil {
			return nil, err
		}
	case c.parsed == nil:
		return nil, errAnswered
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	c.failLatest()
	if c.d.config.Fallbacks > 0 && c.Request.Receipt == nil {
		c.Request.Receipt = &c.receipt
	}
	lease, err := c.choose()
	if err != nil {
		return nil, err
	}
	return c.begin(ctx, lease), nil
}

var errAnswered = errors.New("transport: the request has been answered")

// choose chooses an endpoint that has not failed the request yet. It avoids
// unhealthy endpoints unless there are no others, and those that are known to hang
// even then. The error is that of [endpick.Router.Route]; if endpoints hang, it says
// how many.
func (c *Call) choose() (endpick.Lease, error) {
	var asked time.Time
	if c.observes() {
		asked = c.d.now()
	}
	avoid, hanging := c.d.health.Avoid(nil, nil)
	req := c.Request
	req.Exclude, req.Avoid = c.exclude, avoid
	if len(hanging) > 0 {
		req.Exclude = slices.Concat(c.exclude, hanging)
	}
	lease, err := c.d.config.Router.Route(req)
	if c.observes() {
		c.routed(asked)
	}
	if err != nil && len(hanging) > 0 && errors.As(err, new(*endpick.NoEndpointError)) {
		err = fmt.Errorf("%w; endpoints that are unhealthy and do not answer: %d", err, len(hanging))
	}
	return lease, err
}

// adopt opens a lease for a request that is under way at an endpoint that somebody
// else has chosen. The error is that of [endpick.Router.Route].
func (c *Call) adopt(id string) (endpick.Lease, error) {
	req := c.Request
	req.Receipt, req.Adopted = nil, &endpick.Adopted{Endpoint: id}
	return c.d.config.Router.Route(req)
}

// Body returns the body to send to an endpoint, in pieces that refer to the original:
// a stream whose client did not ask for usage asks for it. Call it after Route.
func (c *Call) Body() [][]byte {
	c.mu.Lock()
	defer c.unlock()
	return c.body
}

// memory is how much the request holds while it waits: the body and the blocks.
func (c *Call) memory() int { return c.parsed.Memory() + 8*cap(c.Request.Blocks) }

// forget drops what only another attempt would need.
func (c *Call) forget() {
	c.parsed, c.body = nil, nil
	if c.d.config.Record == nil {
		c.Request.Blocks = nil
	}
}

// Close ends the call, and an attempt that is still open: as canceled, unless its
// response was complete. It may be called at any time, any number of times.
func (c *Call) Close() {
	c.mu.Lock()
	defer c.unlock()
	if c.latest != nil {
		c.latest.leave()
	}
	c.giveUp()
}
