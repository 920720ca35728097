package transport

import (
	"context"
	"net/http"
	"slices"
	"sync"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/dialect"
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
	metered  bool
	unpacked bool // the body was compressed

	mu sync.Mutex // guards the fields below, and the attempts
	// call and body are dropped when an endpoint has answered: prompts are long,
	// and streams last.
	call    *dialect.Call
	body    [][]byte
	pending pending
	ready   bool     // the prompt has been read
	attempt *Attempt // the latest one
	receipt endpick.Receipt
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
	read, err := d.reader.Read(dialect.Incoming(in))
	if err != nil {
		return nil, err
	}
	d.budget.Request(d.now())
	return &Call{
		Request: read.Request, Warnings: read.Warnings, d: d, call: read, metered: read.Metered(), unpacked: unpacked,
		pending: pending{d: d, method: in.Method, single: true},
	}, nil
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
	defer c.mu.Unlock()
	if c.ready && c.call == nil {
		return nil, errAnswered
	}
	if !c.ready {
		c.call.Request = c.Request
		if err := c.pending.read(ctx, c.call); err != nil {
			return nil, err
		}
		c.ready = true
		c.body, c.metered = c.call.Body(), c.call.Metered()
	} else if err := ctx.Err(); err != nil {
		return nil, err
	}
	if a := c.attempt; a != nil {
		a.fail(Broken)
		c.pending.single = false
		c.pending.exclude = append(c.pending.exclude, a.lease.Endpoint().ID)
	}
	if c.d.config.Fallbacks > 0 && c.pending.request.Receipt == nil {
		c.pending.request.Receipt = &c.receipt
	}
	lease, err := c.pending.choose()
	c.Request = c.pending.request
	if err != nil {
		return nil, err
	}
	c.pending.attempts++
	c.attempt = c.begin(ctx, lease)
	return c.attempt, nil
}

// alternatives are the other candidates of the last decision, best first, followed by
// those that filters removed, which can serve the request as well. There are none if
// the request must not be sent twice, since a proxy also tries them after a connection
// has broken.
func (c *Call) alternatives() []*endpick.Endpoint {
	r := c.pending.request.Receipt
	if c.d.config.Fallbacks == 0 || !c.pending.repeatable() {
		return nil
	}
	var others []*endpick.Endpoint
	for i := range r.Verdicts {
		if i != r.Chosen && len(others) < c.d.config.Fallbacks {
			others = append(others, r.Verdicts[i].Candidate.Endpoint)
		}
	}
	return slices.Clip(others)
}

// Body returns the body to send to an endpoint, in pieces that refer to the original:
// a stream whose client did not ask for usage asks for it. Call it after Route.
func (c *Call) Body() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.body
}

// answered drops what only another attempt would need.
func (c *Call) answered() {
	c.pending.report(true)
	c.call, c.body, c.pending.request.Blocks, c.Request.Blocks = nil, nil, nil, nil
}

// Close ends the call, and an attempt that is still open: as canceled, unless its
// response was complete. It may be called at any time, any number of times.
func (c *Call) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.attempt != nil {
		c.attempt.close()
	}
	c.pending.report(false)
}
