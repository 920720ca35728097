package transport

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport/internal/dialect"
	"github.com/endpick/endpick/transport/recording"
)

// The headers of requests and responses that are endpick's own.
const (
	PriorityHeader = dialect.PriorityHeader
	SessionHeader  = dialect.SessionHeader
	EndpointHeader = "X-Endpick-Endpoint"
)

// Transport is an http.RoundTripper over a router. Make one with [New]. It is safe
// for concurrent use and starts no goroutine of its own; it uses a timer for each
// request that is sent, and one more while requests are queued.
type Transport struct {
	d      *Dispatcher
	config *Config           // the dispatcher's
	wire   http.RoundTripper // Config.Base, wrapped
	queue  *gatewayQueue     // nil: none
	// modelCalls has one element for each engine that is being asked for its models.
	modelCalls chan struct{}

	requests, retries atomic.Uint64
}

// Stats counts what a transport has done.
type Stats struct {
	Requests      uint64
	Retries       uint64 // attempts after the first of a request
	RetriesDenied uint64 // retries refused for lack of budget
	Panics        uint64 // of callbacks in Config
	// Unhealthy is the number of endpoints that currently get less than their share of the
	// traffic, because they have recently failed.
	Unhealthy int
}

// New returns a transport, or an [endpick.ConfigError]. The router's
// endpoints must have addresses that [Target] accepts. If an endpoint with a
// bad address is added later, its requests go to others, and Config.Warn is
// called.
func New(config Config) (*Transport, error) {
	d, err := newDispatcher(config)
	if err != nil {
		return nil, err
	}
	c := &d.config
	if err := c.validateSending(); err != nil {
		return nil, err
	}
	t := &Transport{d: d, config: c, wire: c.Wrap(c.Base), modelCalls: make(chan struct{}, maxModelCalls)}
	if t.wire == nil {
		return nil, badConfig("Wrap", "has returned nil")
	}
	if c.Queue != nil {
		if t.queue, err = newGatewayQueue(t, *c.Queue); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// Stats returns the counts so far.
func (t *Transport) Stats() Stats {
	return Stats{
		Requests: t.requests.Load(), Retries: t.retries.Load(), RetriesDenied: t.d.denied.Load(),
		Panics: t.d.panics.Load(), Unhealthy: t.d.health.Unhealthy(),
	}
}

// SetHashKey changes the key that prompts are hashed with (Config.HashKey), for
// requests that arrive from now on. An index then starts from scratch: what it
// holds under the old key never matches again, and is evicted in time. It may be
// called at any time, from any goroutine.
func (t *Transport) SetHashKey(key prefix.Key) { t.d.reader.SetHashKey(key) }

// CloseIdleConnections closes the idle connections of the base transport.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.config.Base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// roundTrip is one request, over all attempts.
type roundTrip struct {
	pending
	t     *Transport
	in    *http.Request
	start time.Time
	// call and payload are dropped before the response ends: prompts are long, and
	// streams last. What is needed until then is kept beside them.
	call    *dialect.Call
	payload *payload
	slo     endpick.SLO // as the client asked; Request.SLO is what is left after waiting
	model   string
	// maxTokens is the client's limit, for the record.
	maxTokens int
	unpacked  bool              // the body was compressed
	sketch    *recording.Prompt // for the record; nil: none
	salt      recording.Hash
	gaveUp    bool // it gave up a stuck endpoint before the time limit
	observer  *observer
	item      queue.Item[*queued] // as it left the queue
	charged   bool                // its tenant has been charged, for the expected cost
}

// RoundTrip sends the request to an endpoint and returns its response. The
// error is the router's ([endpick.NoEndpointError], [endpick.RejectedError]),
// the queue's ([queue.Error]), a [BodyError], an [UpstreamError], [ErrRead]
// or that of a context that is done; [StatusOf] turns them into statuses. If the
// endpoint breaks off later, reading the body ends in an UpstreamError.
func (t *Transport) RoundTrip(in *http.Request) (*http.Response, error) {
	t.requests.Add(1)
	if dialect.IsModelList(in.Method, in.URL.Path) {
		return t.listModels(in)
	}
	if model, ok := dialect.ModelOf(in.Method, in.URL.Path); ok {
		return t.oneModel(in, model)
	}
	rt := &roundTrip{t: t, in: in, start: t.d.now()}
	rt.pending = pending{d: t.d, method: in.Method, single: t.config.MaxAttempts == 1}
	t.d.budget.Request(rt.start)
	if t.config.Observe != nil {
		rt.observer = new(observer)
	}
	if err := rt.prepare(); err != nil {
		rt.ended(nil, err)
		return nil, err
	}
	defer func() {
		if v := recover(); v != nil { // from Base, or from Route after a stage has overwritten what it must not
			if rt.charged {
				rt.settle(nil, endpick.Failed)
			}
			panic(v)
		}
	}()
	defer rt.report(false) // the failures, if no endpoint has served the request
	var best answer        // what the client gets unless another is better
	for {
		lease, err := rt.lease()
		if err != nil {
			if rt.attempts > 0 {
				return rt.result(best)
			}
			rt.ended(nil, err)
			return nil, err
		}
		refused := best.failure != nil && best.result == Refused
		if rt.attempts > 0 {
			t.retries.Add(1)
			if !refused {
				best.discard()
			}
		}
		a := rt.send(lease)
		if rt.observer != nil {
			rt.observer.answered(&a, rt.in.Context().Err() != nil)
		}
		more := rt.again(&a)
		switch {
		case !refused:
			best = a
		case a.failure == nil || a.result == Refused:
			best.discard()
			best = a
		default: // the client should see the first refusal
			a.discard()
		}
		if a.failure == nil {
			rt.report(true)
		}
		if !more {
			return rt.result(best)
		}
		rt.exclude = append(rt.exclude, lease.Endpoint().ID)
	}
}

// failure is the status of an attempt without a good response.
func (rt *roundTrip) failure(result Result) endpick.Status {
	if rt.in.Context().Err() != nil {
		return endpick.Canceled
	}
	return result.status()
}

func (rt *roundTrip) warn(err error) { rt.t.d.warn(rt.in, err) }

// lease routes the request, waiting in the queue the first time.
func (rt *roundTrip) lease() (endpick.Lease, error) {
	if rt.t.queue != nil && rt.attempts == 0 {
		return rt.t.queue.route(rt)
	}
	return rt.route()
}

// route chooses an endpoint that has not failed the request yet.
func (rt *roundTrip) route() (endpick.Lease, error) {
	if rt.observer == nil {
		return rt.choose()
	}
	asked := rt.t.d.now()
	lease, err := rt.choose()
	rt.observer.routed(asked, rt.t.d.now())
	return lease, err
}

// again reports whether to make another attempt after a failed one, and pays for it.
func (rt *roundTrip) again(a *answer) bool {
	if a.failure == nil || rt.in.Context().Err() != nil {
		return false
	}
	rt.fail(a.x.health.Because(a.failure), a.result)
	return rt.retry(rt.in.Context(), a.x.health, a.result, a.x.paid)
}

// result returns what the last attempt has produced: a response, if there is
// one, even if it says that the endpoint failed.
func (rt *roundTrip) result(a answer) (*http.Response, error) {
	rt.maxTokens = rt.call.MaxTokens()
	rt.call = nil // it refers to the body
	rt.payload.release()
	rt.payload = nil
	if rt.t.config.Record == nil {
		rt.request.Blocks = nil
	}
	if a.response != nil {
		a.response.Request = rt.in // the copy holds the body
		a.x.handOver()
		return a.response, nil
	}
	err := rt.in.Context().Err()
	if err == nil {
		err = &UpstreamError{Endpoint: a.x.lease.Endpoint().ID, Attempts: rt.attempts, Err: a.failure}
	}
	rt.ended(a.x, err)
	return nil, err
}

// ended is called when the client gets an error instead of a response.
func (rt *roundTrip) ended(x *exchange, err error) {
	if rt.observer != nil {
		rt.observer.err = err
	}
	result := Broken
	if StatusOf(err) < http.StatusInternalServerError {
		result = Refused // by the gateway
	}
	rt.record(x, rt.failure(result), 0)
}
