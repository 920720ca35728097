// Package transport sends LLM requests to the endpoints that an [endpick.Router]
// chooses, over the APIs of OpenAI, Anthropic and the engines. A [Transport] is an
// http.RoundTripper: use it in an http.Client, or in an httputil.ReverseProxy
// together with [ErrorHandler].
//
// It reads the whole request, chooses an endpoint, rewrites the target, and
// meters the response as it passes: first token, token counts, usage. The lease
// is closed when the response ends or breaks off, or the client disconnects.
//
// # Retries
//
// A request goes to another endpoint if one can't be reached, sends nothing in
// time, breaks off before the first byte of the response body, answers 429 or
// 5xx (except 501 and 505), or begins a stream with an error. A response is
// therefore returned with its first byte, not before. Requests of the APIs in
// docs/apis.md are retried even if an endpoint may have worked on them, because inference
// has no side effects; so are requests for speech, images and moderation. If the engine is to run
// tools for a request, such as those of an MCP server, or nothing is known of its path, it
// is retried only if its method is safe or the endpoint has not begun: it can't be
// reached, or answers 429.
// A request whose client has disconnected is never retried.
//
// A refusal (400, 404 and the like) goes to the client. Only if it was that
// endpoint's second in a row is another endpoint asked, now and then.
//
// # Health
//
// The server that fails fastest always looks idlest, so endpoints are judged by
// the outcome of their requests. An endpoint has failed a request if it can't be
// reached, or if another endpoint has then served the request; a request that all
// endpoints fail counts against none of them. An endpoint is avoided if it fails a
// quarter of its requests and clearly more than the others, or if it has sent nothing
// to anybody for much longer than the others take. One to fifteen seconds later it
// gets a single request as a trial, then a tenth of its traffic, and its full share
// fifteen seconds after that. If all endpoints are avoided, all are used anyway,
// except those known to hang; if that leaves none, clients get an error at once.
// Package transport/health shows which endpoints are unhealthy and why, and can
// check them actively.
//
// # Queueing
//
// With Config.Queue, requests wait while the endpoints are full, and are routed in
// the order of a [queue.Queue] when there is room. Decisions are then made one at a
// time. A request that can't wait, or has waited too long, fails with a [queue.Error].
//
// # Other requests
//
// Chat, completions, Anthropic's messages, responses, embeddings, reranking,
// transcription and the engines' own APIs are read; docs/apis.md has the table.
// All other requests are passed on unmetered, and routed by load, with a length
// guessed from their size. If no model can be read from a request, it may go to any
// endpoint. Paths that administer engines are refused ([ErrForbidden]).
//
// # Refused requests
//
// These get an [endpick.RequestError], status 400: a model that is not a string;
// names of models, sessions, tenants and adapters that are longer than 256
// bytes or not UTF-8; paths with a ".." segment; JSON that is nested deeper
// than 256 levels or has more parts than Config.MaxItems. Anything else that is
// wrong with a request is left to the engine. A body that is longer than
// Config.MaxBodyBytes, or compressed to less than a sixty-fourth, gets 413.
//
// In memory, a request takes its body, plus at most an eighth of that as slack and an
// eighth for its blocks. Reading it takes time in proportion to its length.
//
// # What is changed
//
// In requests: target and Host; a body in gzip or deflate is sent uncompressed;
// Accept-Encoding becomes identity if the response is metered; a stream whose client
// did not ask for usage asks for it (stream_options.include_usage). In responses:
// that usage is removed again, the rest is passed on byte for byte; a
// response that is compressed in spite of Accept-Encoding is passed on in plain
// text, so that it can be metered. Codings other than gzip and deflate are
// passed on as they are and not metered.
//
// # Headers
//
//	X-Slo-Ttft-Ms, X-Slo-Tpot-Ms   latency targets, see slo.FromHeader
//	X-Endpick-Priority             Request.Priority, an integer
//	X-Endpick-Session              Request.Session; without it, what clients of
//	                               several kinds send anyway, see docs/apis.md
//	X-Endpick-Endpoint             in responses: the ID of the endpoint, if
//	                               Config.EnableEndpointHeader asks for it
//
// A gateway that does not trust its clients removes the endpick headers from
// their requests first.
package transport

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport/internal/choose"
	"github.com/endpick/endpick/transport/internal/dialect"
	"github.com/endpick/endpick/transport/internal/health"
	"github.com/endpick/endpick/transport/internal/hostclock"
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
	config Config
	wire   http.RoundTripper // Config.Base, wrapped
	desk   choose.Desk
	hold   *hold // nil: no queue
	models modelList
	now    func() time.Time

	requests, retries, panics atomic.Uint64
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
	if err := config.validate(); err != nil {
		return nil, err
	}
	t := &Transport{config: config, wire: config.Wrap(config.Base), models: modelList{calls: make(chan struct{}, maxModelCalls)}}
	if t.wire == nil {
		return nil, badConfig("Wrap", "has returned nil")
	}
	t.now = hostclock.Guard(config.Clock, func(v any) { t.panicked(nil, "Config.Clock", v) })
	var tokens func(context.Context, *endpick.Request, string, []byte) ([]uint32, int)
	if config.Tokens != nil {
		tokens = t.tokens
	}
	reader, err := dialect.NewReader(dialect.Config{
		MaxItems: config.MaxItems, SharedCache: config.SharedCache, HashKey: config.HashKey, Tokens: tokens, DisableUsage: config.DisableUsage,
		AllowAdministration: config.AllowAdministration, DenyUnknown: config.DenyUnknown,
		Sketch: config.Record != nil, SketchText: config.RecordText,
	})
	if err != nil {
		return nil, err
	}
	t.desk.Router, t.desk.Reader, t.desk.Clock = config.Router, reader, t.now
	if config.Health != nil {
		t.desk.Health = config.Health.Core()
	} else {
		t.desk.Health = health.New(config.Router, t.now)
	}
	t.desk.Budget = choose.NewBudget(config.RetryShare, config.RetryBurst)
	t.desk.MaxAttempts = config.MaxAttempts
	if config.Queue != nil {
		if t.hold, err = newHold(t, *config.Queue); err != nil {
			return nil, ofBounds(err)
		}
	}
	return t, nil
}

// ofBounds replaces the field of a queue.Config in an error by that of the Config.
func ofBounds(err error) error {
	var own *endpick.ConfigError
	if !errors.As(err, &own) {
		return badConfig("Queue.Bounds", "are refused: "+err.Error())
	}
	return badConfig("Queue.Bounds."+own.Field[strings.LastIndexByte(own.Field, '.')+1:], own.Reason)
}

// Stats returns the counts so far.
func (t *Transport) Stats() Stats {
	return Stats{
		Requests: t.requests.Load(), Retries: t.retries.Load(), RetriesDenied: t.desk.Denied.Load(),
		Panics: t.panics.Load(), Unhealthy: t.desk.Health.Unhealthy(),
	}
}

// CloseIdleConnections closes the idle connections of the base transport.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.config.Base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// trip is one request, over all attempts.
type trip struct {
	choose.Trip
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
	seen      *sighting
	queued    queue.Item[*held] // as it left the queue
	charged   bool              // its tenant has been charged, for the expected cost
}

// RoundTrip sends the request to an endpoint and returns its response. The
// error is the router's ([endpick.NoEndpointsError], [endpick.RejectedError]),
// the queue's ([queue.Error]), a [BodyError], a [ReadError], an [UpstreamError]
// or that of a context that is done; [StatusOf] turns them into statuses. If the
// endpoint breaks off later, reading the body ends in an UpstreamError.
func (t *Transport) RoundTrip(in *http.Request) (*http.Response, error) {
	t.requests.Add(1)
	if dialect.IsModelList(in.Method, in.URL.Path) {
		return t.models.list(t, in)
	}
	if model, ok := dialect.ModelOf(in.Method, in.URL.Path); ok {
		return t.models.one(t, in, model)
	}
	tr := &trip{t: t, in: in, start: t.now()}
	tr.Desk, tr.Method, tr.Alone = &t.desk, in.Method, t.config.MaxAttempts == 1
	t.desk.Budget.Request(tr.start)
	if t.config.Observe != nil {
		tr.seen = new(sighting)
	}
	if err := tr.prepare(); err != nil {
		tr.ended(nil, err)
		return nil, err
	}
	defer func() {
		if v := recover(); v != nil { // from Base, or from Route after a stage has overwritten what it must not
			if tr.charged {
				tr.settle(nil, endpick.Failed)
			}
			panic(v)
		}
	}()
	defer tr.Judge(false) // the failures, if no endpoint has served the request
	var best attempt      // what the client gets unless another is better
	for {
		lease, err := tr.lease()
		if err != nil {
			if tr.Attempts > 0 {
				return tr.result(best)
			}
			tr.ended(nil, err)
			return nil, err
		}
		refused := best.failure != nil && best.kind == choose.Refusal
		if tr.Attempts > 0 {
			t.retries.Add(1)
			if !refused {
				best.discard()
			}
		}
		a := tr.send(lease)
		if tr.seen != nil {
			tr.seen.answered(&a, tr.in.Context().Err() != nil)
		}
		more := tr.again(&a)
		switch {
		case !refused:
			best = a
		case a.failure == nil || a.kind == choose.Refusal:
			best.discard()
			best = a
		default: // the client should see the first refusal
			a.discard()
		}
		if a.failure == nil {
			tr.Judge(true)
		}
		if !more {
			return tr.result(best)
		}
		tr.Exclude(lease.Endpoint().ID)
	}
}

// failure is the status of an attempt without a good response.
func (tr *trip) failure(kind choose.Kind) endpick.Status {
	if tr.in.Context().Err() != nil {
		return endpick.Canceled
	}
	return kind.Status()
}

func (tr *trip) warn(err error) { tr.t.warn(tr.in, err) }

// lease routes the request, waiting for its turn the first time.
func (tr *trip) lease() (endpick.Lease, error) {
	if tr.t.hold != nil && tr.Attempts == 0 {
		return tr.t.hold.route(tr)
	}
	return tr.route()
}

// route chooses an endpoint that has not failed the request yet.
func (tr *trip) route() (endpick.Lease, error) {
	if tr.seen == nil {
		return tr.Route()
	}
	asked := tr.t.now()
	lease, err := tr.Route()
	tr.seen.routed(asked, tr.t.now())
	return lease, err
}

// again reports whether to make another attempt after a failed one, and pays for it.
func (tr *trip) again(a *attempt) bool {
	if a.failure == nil || tr.in.Context().Err() != nil {
		return false
	}
	tr.Failed(a.x.visit.Because(a.failure), a.kind)
	return tr.Again(tr.in.Context(), a.x.visit, a.kind, a.x.paid)
}

// result returns what the last attempt has produced: a response, if there is
// one, even if it says that the endpoint failed.
func (tr *trip) result(a attempt) (*http.Response, error) {
	tr.maxTokens = tr.call.MaxTokens()
	tr.call = nil // it refers to the body
	tr.payload.release()
	tr.payload = nil
	if tr.t.config.Record == nil {
		tr.Request.Blocks = nil
	}
	if a.response != nil {
		a.response.Request = tr.in // the copy holds the body
		a.x.handOver()
		return a.response, nil
	}
	err := tr.in.Context().Err()
	if err == nil {
		err = &UpstreamError{Endpoint: a.x.lease.Endpoint().ID, Attempts: tr.Attempts, Err: a.failure}
	}
	tr.ended(a.x, err)
	return nil, err
}

// ended is called when the client gets an error instead of a response.
func (tr *trip) ended(x *exchange, err error) {
	if tr.seen != nil {
		tr.seen.err = err
	}
	kind := choose.Broken
	if StatusOf(err) < http.StatusInternalServerError {
		kind = choose.Refusal // by the gateway
	}
	tr.record(x, tr.failure(kind), 0)
}
