package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/endpick/endpick/transport/scrape"
)

// pollInterval is the time between two polls of a server.
const pollInterval = 200 * time.Millisecond

// asking is a client for questions to servers, with the key that engines require. It follows
// no redirects.
func (g *gateway) asking() *http.Client {
	base := &http.Transport{DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}
	return &http.Client{
		Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			if key := *g.engineKey.Load(); key != "" {
				r = r.Clone(r.Context())
				r.Header.Set("Authorization", "Bearer "+key)
			}
			return base.RoundTrip(r)
		}),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// startPolling polls the router's endpoints for their load, checks their health, and
// asks for their capacities and models until stop is called.
func (g *gateway) startPolling() (stop func(), err error) {
	poller, err := scrape.New(scrape.Config{
		Router: g.router, Client: g.asking(), Interval: pollInterval, OnError: (&pollErrors{log: g.log, last: map[string]time.Time{}}).report,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { poller.Run(ctx) })
	running.Go(func() { g.health.Run(ctx) })
	running.Go(func() { g.inspector.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}, nil
}

// pollErrors logs errors of polling, at most once a minute for each endpoint.
type pollErrors struct {
	log *slog.Logger

	mu   sync.Mutex
	last map[string]time.Time // by endpoint, within the last minute
}

func (p *pollErrors) report(err error) {
	id := ""
	if e := new(scrape.Error); errors.As(err, &e) {
		id = e.Endpoint
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Sub(p.last[id]) >= time.Minute {
		maps.DeleteFunc(p.last, func(_ string, at time.Time) bool { return now.Sub(at) >= time.Minute })
		p.last[id] = now
		p.log.Warn("an engine does not report its load", "error", err)
	}
}
