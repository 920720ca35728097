package caddy

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
	"github.com/endpick/endpick/transport/scrape"
	"go.uber.org/zap"
)

// pools survive a reload: routers by the names of their pools, each as long as a
// configuration uses it.
var pools = caddy.NewUsagePool()

// pool is a router with its state, and the transport over it.
type pool struct {
	mu      sync.Mutex
	logger  atomic.Pointer[zap.Logger] // of the running configuration
	router  *endpick.Router
	policy  endpick.Policy  // the router's
	health  *health.Monitor // of all senders
	sender  *transport.Transport
	applied definition
	// wanted is what the latest configuration wants of the pool, and by identifies
	// that configuration. Configurations are numbered; one older than what was
	// applied is ignored.
	wanted         definition
	by             any
	number, newest uint64
	stop           context.CancelFunc // stops the polling
	gone           bool               // nothing uses it but requests that were late
	polled         sync.WaitGroup
}

// definition is everything that defines a pool, in parts that change independently.
type definition struct{ policy, endpoints, sending, scrape string }

// Destruct implements [caddy.Destructor]: nothing uses the pool any more.
func (p *pool) Destruct() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopPolling()
	p.gone = true
	if p.sender != nil {
		p.sender.CloseIdleConnections()
	}
	return nil
}

func (t *Settings) definition() definition {
	text := func(v any) string {
		b, _ := json.Marshal(v) // plain data
		return string(b)
	}
	sending := *t
	sending.Policy, sending.Endpoints, sending.Scrape = "", nil, 0
	return definition{t.policy(), text(t.Endpoints), text(&sending), text(t.Scrape)}
}

// want records what a configuration wants of the pool, and refuses something different
// from the same one. It returns the configuration's number.
func (p *pool) want(d definition, by any) (uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.by == by && p.wanted != d {
		return 0, errors.New("endpick: two transports of one pool differ; give one of them a pool of its own")
	}
	p.wanted, p.by = d, by
	p.number++
	return p.number, nil
}

// apply changes the pool to what t says, keeping what it knows. It is called
// with a configuration's first request, not when that is read: a configuration
// that turns out to be wrong elsewhere never gets one.
func (p *pool) apply(t *Transport) (*transport.Transport, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := t.definition()
	if t.number < p.newest {
		return p.sender, nil // a request that the previous configuration still serves
	}
	p.logger.Store(t.logger)
	if p.sender != nil && p.applied == next {
		p.newest = t.number
		return p.sender, nil
	}
	if err := p.route(t, next); err != nil {
		return nil, err
	}
	if p.sender == nil || p.applied.sending != next.sending {
		config, err := t.sending()
		if err != nil {
			return nil, err
		}
		config.Router, config.Health, config.Describe, config.Warn = p.router, p.health, describe, p.warn
		sender, err := transport.New(config)
		if err != nil {
			return nil, err
		}
		if p.sender != nil {
			p.sender.CloseIdleConnections()
		}
		p.sender = sender
	}
	if p.applied.scrape != next.scrape {
		if err := p.poll(t); err != nil {
			return nil, err
		}
	}
	p.applied, p.newest = next, t.number
	return p.sender, nil
}

// route updates policy and endpoints.
func (p *pool) route(t *Transport, next definition) error {
	if p.router != nil && p.applied.policy == next.policy && p.applied.endpoints == next.endpoints {
		return nil
	}
	config, err := t.routing()
	if err != nil {
		return err
	}
	if p.router == nil {
		p.policy = config.Policy
		if p.router, err = endpick.New(config); err == nil {
			p.health, err = health.New(health.Config{Router: p.router})
		}
		return err
	}
	if p.applied.policy != next.policy {
		// What has been learned is kept, if the new policy can use it.
		reused, err := all.Reuse(next.policy, p.policy)
		if err != nil {
			return err
		}
		if err := p.router.SetPolicy(reused.Policy); err != nil {
			return err
		}
		p.policy = reused.Policy
	}
	return p.router.SetEndpoints(config.Endpoints)
}

// poll starts or stops polling the servers for their load.
func (p *pool) poll(t *Transport) error {
	p.stopPolling()
	if t.Scrape == 0 || p.gone {
		return nil
	}
	poller, err := scrape.New(scrape.Config{
		Router: p.router, Interval: time.Duration(t.Scrape),
		OnError: func(err error) { p.logger.Load().Debug("a server's load is not known", zap.Error(err)) },
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.polled.Go(func() { poller.Run(ctx) })
	return nil
}

// warn logs problems with requests that were served anyway.
func (p *pool) warn(in *http.Request, err error) {
	if in == nil {
		p.logger.Load().Warn("a callback failed", zap.Error(err))
		return
	}
	p.logger.Load().Warn("something is wrong with a request", zap.String("path", in.URL.Path), zap.Error(err))
}

func (p *pool) stopPolling() {
	if p.stop != nil {
		p.stop()
		p.polled.Wait()
		p.stop = nil
	}
}
