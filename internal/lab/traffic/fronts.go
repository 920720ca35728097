package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/transport"
)

// Direct is the library's own transport in a proxy of the standard library, with which other
// hosts are compared. Ties are broken in the same way each time.
func Direct(policy string) Opener {
	return func(f *Fleet) (*Front, error) { return Proxy(policy, 1, f.Endpoints()) }
}

// Proxy is the same in front of endpoints that are there.
func Proxy(policy string, seed uint64, endpoints []endpick.Endpoint) (*Front, error) {
	config, err := preset.ByName(policy)
	if err != nil {
		return nil, err
	}
	config.Endpoints, config.Seed = endpoints, seed
	router, err := endpick.New(config)
	if err != nil {
		return nil, err
	}
	routed, err := transport.New(transport.Config{Router: router})
	if err != nil {
		return nil, err
	}
	handler := &httputil.ReverseProxy{
		Rewrite: func(*httputil.ProxyRequest) {}, Transport: routed, ErrorHandler: transport.ErrorHandler,
	}
	return Serve(handler, router, func() error { routed.CloseIdleConnections(); return nil })
}

// Serve serves a handler that routes with a router, until the front is stopped, which calls
// stop.
func Serve(handler http.Handler, router *endpick.Router, stop func() error) (*Front, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }()
	return &Front{
		Client: NewClient("http://" + l.Addr().String()),
		Leases: func() int { return router.Stats().OpenLeases },
		Stop:   func() error { return errors.Join(server.Close(), stop()) },
	}, nil
}

// PlayBehind plays conversations at their times behind a front with n new servers. It returns
// when no lease is open, and calls step after each request.
func PlayBehind(ctx context.Context, n, kvTokens int, open Opener, conversations []Conversation, step func()) (samples []Sample, err error) {
	config, err := ServerConfig(kvTokens)
	if err != nil {
		return nil, err
	}
	fleet, err := StartFleet(n, config)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, fleet.Close()) }()
	front, err := open(fleet)
	if err != nil {
		return nil, err
	}
	defer func() { front.Client.Close(); err = errors.Join(err, front.Stop()) }()
	samples = front.Client.Play(ctx, conversations, step)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// A stream may end a moment after its client has received everything.
	for until := time.Now().Add(30 * time.Second); front.Leases() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			return nil, fmt.Errorf("traffic: %d leases are left open", front.Leases())
		}
	}
	return samples, nil
}
