package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/suite"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
	"github.com/endpick/endpick/transport/replica"
)

// gateway is one of several in front of a fleet: an HTTP server of its own.
type gateway struct {
	router *endpick.Router
	shared *replica.Replica // nil: it shares nothing
	wire   *wire
	url    string
	stop   func() error
}

// sharing is how much gateways tell each other.
type sharing int

const (
	nobody sharing = iota
	loads
	everything
)

// reportEvery is how often a gateway polls the servers' load.
const reportEvery = time.Second

func startGateway(name string, fleet *traffic.Fleet, key prefix.Key, how sharing, b *broker) (g *gateway, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	var closers []func() error
	g = &gateway{stop: func() error {
		cancel()
		var errs []error
		for i := len(closers) - 1; i >= 0; i-- {
			errs = append(errs, closers[i]())
		}
		return errors.Join(errs...)
	}}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.stop())
		}
	}()

	config, err := all.ByName(policy)
	if err != nil {
		return g, err
	}
	config.Endpoints = fleet.Endpoints()
	if g.router, err = endpick.New(config); err != nil {
		return g, err
	}
	monitor, err := health.New(health.Config{Router: g.router})
	if err != nil {
		return g, err
	}
	if how != nobody {
		if g.wire, err = b.wire(delay); err != nil {
			return g, err
		}
		if g.shared, err = replica.New(replica.Config{Key: key, Name: name, Health: monitor, DisableIndex: how == loads}); err != nil {
			return g, err
		}
		config.Policy.Admitters = append(config.Policy.Admitters, g.shared)
		if err = g.router.SetPolicy(config.Policy); err != nil {
			return g, err
		}
		var conn *nats.Conn
		if conn, err = replica.Dial(g.wire.url()); err != nil {
			return g, err
		}
		closers = append(closers, func() error { conn.Close(); return nil })
		ended := make(chan error, 1)
		go func() { ended <- g.shared.Run(ctx, g.router, replica.NATS(conn, "example")) }()
		closers = append(closers, func() error { return <-ended })
	}
	polled := make(chan struct{})
	go func() { defer close(polled); poll(ctx, g.router, fleet) }()
	closers = append(closers, func() error { <-polled; return nil })

	t, err := transport.New(transport.Config{Router: g.router, Health: monitor, HashKey: key, Pass: []string{"/"}})
	if err != nil {
		return g, err
	}
	front, err := suite.Serve(
		&httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}, Transport: t, ErrorHandler: transport.ErrorHandler},
		g.router, func() error { t.CloseIdleConnections(); return nil })
	if err != nil {
		return g, err
	}
	g.url = front.Address
	closers = append(closers, front.Close)
	return g, nil
}

// poll polls the servers' load, as a scraper would.
func poll(ctx context.Context, router *endpick.Router, fleet *traffic.Fleet) {
	ticker := time.NewTicker(reportEvery)
	defer ticker.Stop()
	for {
		for _, m := range fleet.Members {
			mark := router.Snapshot(m.ID)
			l := m.Server.Load()
			_ = router.Report(m.ID, endpick.Load{Waiting: float64(l.Waiting), Running: float64(l.Running), KVUsage: l.KVUsage, Snapshot: mark})
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// meet waits until all gateways know each other.
func meet(gateways []*gateway) error {
	known, pairs := 0, len(gateways)*(len(gateways)-1)
	if !within(patience, func() bool {
		known = 0
		for _, g := range gateways {
			for _, p := range g.shared.Status().Peers {
				if p.Live && !p.Behind {
					known++
				}
			}
		}
		return known == pairs
	}) {
		return fmt.Errorf("the gateways don't meet: %d of %d know each other", known, pairs)
	}
	return nil
}

// inTurn sends requests to the gateways in turn, whatever host they name.
type inTurn struct {
	base http.RoundTripper
	next func() string
}

func (t *inTurn) RoundTrip(req *http.Request) (*http.Response, error) {
	out := req.Clone(req.Context())
	out.URL.Host = t.next()
	out.Host = ""
	return t.base.RoundTrip(out)
}
