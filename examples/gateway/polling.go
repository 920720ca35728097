package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/health"
	"github.com/endpick/endpick/transport/scrape"
)

// pollInterval is the time between two polls of a server.
const pollInterval = 200 * time.Millisecond

// startPolling polls the router's endpoints for their load, checks their health, and
// asks for their capacities until stop is called.
func startPolling(router *endpick.Router, monitor *health.Monitor, inspector *scrape.Inspector, logger *slog.Logger) (stop func(), err error) {
	poller, err := scrape.New(scrape.Config{
		Router: router, Interval: pollInterval, OnError: (&pollErrors{log: logger, last: map[string]time.Time{}}).report,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { poller.Run(ctx) })
	running.Go(func() { monitor.Run(ctx) })
	running.Go(func() { inspector.Run(ctx) })
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
