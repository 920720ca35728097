package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
)

// The contenders, in this order.
const (
	own    = "Bifrost, random"
	with   = "Bifrost, endpick"
	direct = "endpick, no Bifrost"
)

const (
	atOnce   = 8     // requests per step
	kvTokens = 16384 // cache of each server
)

// compare plays the workload through each contender and prints a table, and compares
// what is cached with endpick in Bifrost and without.
func compare(ctx context.Context, w *traffic.Workload, policy string, pairs int, out, progress io.Writer) error {
	var results []traffic.Result
	for _, name := range []string{own, with, direct} {
		fmt.Fprintln(progress, name)
		samples, err := measure(ctx, w, name, policy)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		results = append(results, traffic.Summarise(name, samples, endpick.SLO{}))
	}
	if err := traffic.WriteTable(out, results); err != nil {
		return err
	}
	fmt.Fprintln(progress, "in step")
	opener := func(name string) traffic.Opener {
		return func(f *traffic.Fleet) (*traffic.Front, error) { return front(ctx, f, name, traffic.InStepPolicy) }
	}
	hits, err := traffic.PairHits(ctx, *w, pairs, atOnce, kvTokens, opener(with), opener(direct))
	if err != nil {
		return fmt.Errorf("in step: %w", err)
	}
	return judge(results, &hits, out)
}

// judge says in one line whether Bifrost with endpick is as it should be.
func judge(results []traffic.Result, hits *traffic.Paired, out io.Writer) error {
	var wrong []error
	for _, r := range results {
		if r.Failed > 0 {
			wrong = append(wrong, fmt.Errorf("%s: %d requests failed, the first: %w", r.Policy, r.Failed, r.FirstErr))
		}
		if r.TTFT == nil {
			return errors.Join(append(wrong, fmt.Errorf("%s: nothing was measured", r.Policy))...)
		}
	}
	share := results[1].TTFT.P50 / results[0].TTFT.P50
	if share > 0.25 {
		wrong = append(wrong, fmt.Errorf("endpick's median TTFT is %.2f of random's", share))
	}
	if apart, _ := hits.Difference(); math.Abs(apart) > 0.01 {
		wrong = append(wrong, fmt.Errorf("in step, endpick in Bifrost and without are %.1f points apart", 100*apart))
	}
	fmt.Fprintf(out, "\nmedian TTFT %.2f of that of Bifrost's own choice, %d failed, no lease left; in step, hits in Bifrost and without it: %s\n",
		share, results[1].Failed, hits)
	return errors.Join(wrong...)
}

// measure starts servers and a contender in front of them, and plays the conversations.
func measure(ctx context.Context, w *traffic.Workload, name, policy string) (samples []traffic.Sample, err error) {
	config, err := traffic.ServerConfig(kvTokens)
	if err != nil {
		return nil, err
	}
	f, err := traffic.StartFleet(4, config)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	front, err := front(ctx, f, name, policy)
	if err != nil {
		return nil, err
	}
	defer func() { front.Client.Close(); err = errors.Join(err, front.Stop()) }()
	samples = front.Client.Play(ctx, w.Conversations(), func() {})
	// A stream may end a moment after its client has received everything.
	for until := time.Now().Add(30 * time.Second); front.Leases() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			return nil, fmt.Errorf("%d leases are left open", front.Leases())
		}
	}
	return samples, ctx.Err()
}

// front puts a contender in front of the servers.
func front(ctx context.Context, f *traffic.Fleet, name, policy string) (*traffic.Front, error) {
	handler, router, stop, err := contender(ctx, name, policy, f.Endpoints())
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		stop()
		return nil, err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }()
	return &traffic.Front{
		Client: traffic.NewClient("http://" + l.Addr().String()),
		Leases: func() int { return router.Stats().OpenLeases },
		Stop: func() error {
			defer stop()
			return server.Close()
		},
	}, nil
}

func contender(ctx context.Context, name, policy string, endpoints []endpick.Endpoint) (http.Handler, *endpick.Router, func(), error) {
	switch name {
	case direct:
		return library(policy, endpoints)
	case own:
		policy = random
	}
	b, router, err := start(ctx, policy, endpoints)
	if err != nil {
		return nil, nil, nil, err
	}
	return &gateway{b}, router, b.Shutdown, nil
}

// library is a proxy of the standard library with endpick's transport.
func library(policy string, endpoints []endpick.Endpoint) (http.Handler, *endpick.Router, func(), error) {
	config, err := all.ByName(policy)
	if err != nil {
		return nil, nil, nil, err
	}
	config.Endpoints, config.Seed = endpoints, seed
	router, err := endpick.New(config)
	if err != nil {
		return nil, nil, nil, err
	}
	routed, err := transport.New(transport.Config{Router: router})
	if err != nil {
		return nil, nil, nil, err
	}
	return &httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}, Transport: routed, ErrorHandler: transport.ErrorHandler}, router, func() {}, nil
}
