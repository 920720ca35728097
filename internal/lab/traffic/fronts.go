package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
)

// Direct is the library's own transport in a proxy of the standard library, with which other
// hosts are compared. Ties are broken in the same way each time.
func Direct(policy string) Opener {
	return func(f *Fleet) (*Front, error) { return Proxy(policy, 1, f.Endpoints()) }
}

// Proxy is the same in front of endpoints that are there.
func Proxy(policy string, seed uint64, endpoints []endpick.Endpoint) (*Front, error) {
	config, err := all.ByName(policy)
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

// Way is a front that is compared with others.
type Way struct {
	Name string
	Open Opener
}

// Contest compares hosts of the library: it plays the workload behind each way, and others in
// step behind a and b, which route with the same information, so many times. The text is a
// table, and how often a and b have found prompts in caches.
func Contest(ctx context.Context, w Workload, pairs int, ways []Way, a, b Opener) (results []Result, hits Paired, text string, err error) {
	const servers, kvTokens, atOnce = 4, 16384, 8
	for _, way := range ways {
		samples, err := PlayBehind(ctx, servers, kvTokens, way.Open, w.Conversations(), func() {})
		r := Summarise(way.Name, samples, endpick.SLO{})
		if err == nil {
			err = r.FirstErr
		}
		if err != nil {
			return nil, hits, "", fmt.Errorf("%s: %w", way.Name, err)
		}
		results = append(results, r)
	}
	if hits, err = PairHits(ctx, w, pairs, atOnce, kvTokens, a, b); err != nil {
		return nil, hits, "", fmt.Errorf("in step: %w", err)
	}
	var table strings.Builder
	err = WriteTable(&table, results)
	return results, hits, fmt.Sprintf("%shits in step: %s", &table, &hits), err
}

// ContestWorkload is the workload of contests, some conversations of many turns.
func ContestWorkload(duration time.Duration) Workload {
	return Workload{
		Duration: duration, Rate: 16, Groups: 16, SystemTokens: 3000, QuestionTokens: 80, OutputTokens: 48, Turns: 3,
		Think: 400 * time.Millisecond, Seed: 1,
	}
}
