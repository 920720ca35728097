package transport

import (
	"net/http"
	"sync/atomic"

	"github.com/endpick/endpick/internal/check"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport/internal/dialect"
)

// The headers of requests and responses that are endpick's own.
const (
	PriorityHeader = dialect.PriorityHeader
	SessionHeader  = dialect.SessionHeader
	EndpointHeader = "X-Endpick-Endpoint"
)

// Transport is an http.RoundTripper over a router. Make one with [New]. It is safe
// for concurrent use and starts no goroutine of its own without Config.KeepAlive; it uses a timer for each
// request that is sent, and one more while requests are queued.
type Transport struct {
	d      *Dispatcher
	config *Config           // the dispatcher's
	wire   http.RoundTripper // Config.Base, wrapped
	queue  *gatewayQueue
	// modelCalls has one element for each engine that is being asked for its models.
	modelCalls chan struct{}

	requests, retries atomic.Uint64
	resumed           atomic.Uint64
	held              atomic.Int64 // bytes of responses that their clients do not see yet
	saved             atomic.Int64 // bytes of requests that may be resumed
}

// Stats counts what a transport has done.
type Stats struct {
	Requests      uint64
	Retries       uint64 // attempts after the first of a request
	RetriesDenied uint64 // retries refused for lack of budget
	Resumed       uint64 // streams that have broken off and gone on at another endpoint
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
		return nil, check.Bad("transport.Config.Wrap", "has returned nil")
	}
	if t.queue, err = newGatewayQueue(t, c.Queue); err != nil {
		return nil, err
	}
	return t, nil
}

// Stats returns the counts so far.
func (t *Transport) Stats() Stats {
	return Stats{
		Requests: t.requests.Load(), Retries: t.retries.Load(), RetriesDenied: t.d.denied.Load(), Resumed: t.resumed.Load(),
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
