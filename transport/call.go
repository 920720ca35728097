package transport

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/dialect"
	"github.com/endpick/endpick/transport/internal/health"
)

// One request is one [Call], whoever owns the connection and drives it: [Transport.RoundTrip] for
// net/http, the ext_proc server, a gateway of its own with a [Dispatcher].
//
//	Read ──► Route ──► Attempt ──► Header ──► Feed … ──► End
//	           ▲          │          │          │
//	           │          └── Fail ──┴────┬─────┘
//	           └────────────────────── Again
//
// What a reader may look for:
//
//	read.go       how a request is read
//	queue.go      how it waits for room, before its first attempt
//	call.go       how an endpoint is chosen
//	attempt.go    how an attempt at one endpoint is made, and what its response says of it
//	refusal.go    how an endpoint is judged that does not serve it
//	deadline.go   how long it may take
//	retry.go      when the request is sent elsewhere, and who is at fault
//	response.go   how the response is passed on
//	end.go        who learns what at the end
//	roundtrip.go  the driver for net/http
//
// The call has what all attempts share: the request, whom it must not go to again, who has failed
// it so far. An [Attempt] has the lease, the meter, what health learns of it, and its deadline; its
// stage is one of five. How it ends is a [Result], from which the status of the lease follows. Of
// the attempts of a call, one at most is waiting or serving: the latest.
//
// One mutex guards a call and its attempts, because three goroutines may end them: the one that
// passes the response on, the one that notices that the client has left, and the timer's. It is
// taken for each piece of a response, and never while the request waits, in the queue or for its
// endpoint. Callbacks that learn of the end are called without it ([Call.unlock]).
//
// A Dispatcher's call leaves out what needs a connection of ours: the queue, limits of time, and
// records.

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
	method   string
	metered  bool
	unpacked bool // the body was compressed
	// harmless says that the request is known to do nothing but compute a response: its
	// API is known, and the engine runs no tools for it but searches.
	harmless bool

	mu sync.Mutex // guards the fields below, and the attempts
	// parsed and body are dropped when an endpoint has answered: prompts are long,
	// and streams last.
	parsed *dialect.Call
	body   [][]byte
	alias  *alias // the client has asked for a name; nil: for a model
	query  string // with the model behind the name
	ready  bool   // the prompt has been read

	latest   *Attempt
	attempts int
	failed   []string // endpoints that have failed the request
	exclude  []string // these, and those that can't serve it or must not
	suspects health.Suspects
	single   bool // the sender asks only one endpoint
	gaveUp   bool // it gave up a stuck endpoint before the time limit
	deaths   int  // endpoints that have broken off while they had it
	unasking bool // usage is not asked for any more

	// Of a Transport.
	in      *http.Request // nil: it is a Dispatcher's
	t       *Transport
	chosen  chan struct{} // closed when the first endpoint was chosen; nil: nobody waits for that
	saved   int64         // bytes of the request, which stay because it may be resumed; 0: it is not
	reading sync.Mutex    // locked for good when the host may read the receipt of the first decision
	charged *queued       // as it left the queue: its tenant has been charged, for the expected cost; nil: not
	story   story
}

// Route chooses an endpoint for the request, or another one after the last has
// failed. If nothing was reported about the last attempt, it has failed. When ctx
// is done, the attempt ends by itself: as canceled, unless the response was
// complete.
//
// The error is an [endpick.NoEndpointError], an [endpick.ContextError], an
// [endpick.RejectedError], an [endpick.RequestError] or that of ctx.
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
		c.Request.Receipt = new(endpick.Receipt)
	}
	lease, err := c.choose(ctx)
	if err != nil {
		return nil, err
	}
	return c.begin(ctx, lease), nil
}

var errAnswered = errors.New("transport: the request has been answered")

// choose chooses an endpoint that has not failed the request yet, or the same one to ask it for less. The error
// is that of [endpick.Router.Route]; if endpoints hang, it says how many.
func (c *Call) choose(ctx context.Context) (endpick.Lease, error) {
	if a := c.latest; a != nil && a.overasked {
		if others, found := c.allBut(a.lease.Endpoint().ID); found {
			req := c.Request
			req.Receipt, req.Exclude = nil, others
			if lease, err := c.d.config.Router.Route(req); err == nil {
				return lease, nil
			}
		}
	}
	if c.alias != nil {
		return c.chooseAmong(ctx)
	}
	lease, err := c.chooseFor(false)
	var none *endpick.NoEndpointError
	if id := c.parsed.Endpoint(); id != "" && !c.metered && errors.As(err, &none) && none.Draining > 0 && !slices.Contains(c.exclude, id) {
		return c.adopt(id) // it alone has what is stored there, which costs it no work
	}
	return lease, err
}

// chooseFor chooses an endpoint for the model that the call is for now. Unhealthy ones are avoided, or with strict
// excluded; those that are known to hang, or to sleep, are excluded in any case.
func (c *Call) chooseFor(strict bool) (endpick.Lease, error) {
	var asked time.Time
	if c.observes() {
		asked = c.d.now()
	}
	avoid, out := c.d.health.Avoid(nil, nil, c.attempts > 0, c.key())
	hanging := len(out)
	avoid = c.d.health.AvoidFor(avoid, c.model(), c.parsed.Path())
	if c.attempts == 0 && c.repeatable() {
		avoid = append(avoid, c.d.health.Only(c.model())...)
	}
	out = append(out, c.d.asleep(c.d.now())...)
	unanswering := out
	if strict {
		out = append(out, avoid...)
	}
	req := c.Request
	req.Exclude, req.Avoid = append(slices.Clip(c.exclude), out...), append(avoid, c.Request.Avoid...)
	if c.reading.TryLock() {
		defer c.reading.Unlock()
	} else {
		req.Receipt = nil
	}
	lease, err := c.d.config.Router.Route(req)
	if c.observes() {
		c.story.asked, c.story.decision = asked, c.d.now().Sub(asked)
	}
	if c.d.config.Wake != nil {
		expected := time.Duration(-1)
		if err == nil {
			c.d.sent(lease.Endpoint())
			candidate, _ := lease.Candidate()
			expected = candidate.Prediction.TTFT // 0: unknown
		}
		c.wake(append(out, avoid...), expected)
	}
	var none *endpick.NoEndpointError
	if errors.As(err, &none) {
		if c.alias == nil && none.Serving == 0 {
			none.Others = append(slices.Sorted(maps.Keys(*c.d.names.Load())), none.Others...)
		}
		if hanging > 0 {
			err = fmt.Errorf("%w; endpoints that are unhealthy and do not answer: %d", err, hanging)
		}
		if len(c.sleeping(unanswering)) > 0 {
			err = &wakingError{err}
		}
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
func (c *Call) memory() int {
	n := c.parsed.Memory() + 8*cap(c.Request.Blocks)
	if c.alias != nil {
		n *= 1 + len(c.alias.models)
	}
	return n
}

// forget drops what only another attempt would need.
func (c *Call) forget() {
	c.parsed, c.body, c.alias = nil, nil, nil
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
