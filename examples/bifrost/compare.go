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
	"slices"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/traffic"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/transport"
)

// The ways that are compared, in this order.
const (
	own    = "Bifrost, random"
	with   = "Bifrost, endpick"
	direct = "endpick, no Bifrost"
)

// compare plays the workload through each contender and prints a table.
func compare(ctx context.Context, w *traffic.Workload, policy string, out, progress io.Writer) error {
	var results []traffic.Result
	for _, name := range []string{own, with, direct} {
		fmt.Fprintln(progress, name)
		samples, err := measure(ctx, name, policy, 1, func(c *traffic.Client, _ func() error) []traffic.Sample {
			return c.Play(ctx, w.Conversations(), func() {})
		})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		results = append(results, traffic.Summarise(name, samples, endpick.SLO{}))
	}
	if err := traffic.WriteTable(out, results); err != nil {
		return err
	}
	breathless := *w
	breathless.Think = 0
	var alone []traffic.Result
	for _, name := range []string{with, direct} {
		fmt.Fprintln(progress, name+", one request at a time")
		samples, err := measure(ctx, name, policy, aloneSpeed, func(c *traffic.Client, idle func() error) []traffic.Sample {
			return oneByOne(ctx, c, breathless.Conversations(), idle)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		alone = append(alone, traffic.Summarise(name, samples, endpick.SLO{}))
	}
	return judge(results, alone, out)
}

// aloneSpeed is how fast servers compute for requests that come one at a time: nothing
// depends on it then but how long that takes.
const aloneSpeed = 1000

// oneByOne plays conversations, each request when the one before is
// over for all, so that what is cached depends on the choices alone.
func oneByOne(ctx context.Context, c *traffic.Client, conversations []traffic.Conversation, idle func() error) (samples []traffic.Sample) {
	for i := range conversations {
		c.Converse(ctx, time.Now().Add(-time.Hour), &conversations[i], func(s traffic.Sample) {
			s.Err = errors.Join(s.Err, idle())
			samples = append(samples, s)
		})
	}
	return samples
}

// judge says in a line whether Bifrost with endpick is what it should be.
func judge(results, alone []traffic.Result, out io.Writer) error {
	var wrong []error
	for _, r := range slices.Concat(results, alone) {
		if r.Failed > 0 {
			wrong = append(wrong, fmt.Errorf("%s: %d requests failed, the first: %w", r.Policy, r.Failed, r.FirstErr))
		}
		if r.TTFT == nil || r.PrefixHitRatio == nil {
			return errors.Join(append(wrong, fmt.Errorf("%s: nothing was measured", r.Policy))...)
		}
	}
	apart := func(a, b traffic.Result, limit float64, what string) float64 {
		d := math.Abs(*a.PrefixHitRatio - *b.PrefixHitRatio)
		if d > limit {
			wrong = append(wrong, fmt.Errorf("%.1f points of the prompts lie between endpick in Bifrost and without, %s", 100*d, what))
		}
		return 100 * d
	}
	share := results[1].TTFT.P50 / results[0].TTFT.P50
	if share > 0.25 {
		wrong = append(wrong, fmt.Errorf("endpick's median TTFT is %.2f of random's", share))
	}
	busy := apart(results[1], results[2], 0.03, "under load")
	single := apart(alone[0], alone[1], 0.01, "one request at a time")
	fmt.Fprintf(out, "\nmedian TTFT %.2f of that of Bifrost's own choice; hits %.3f one request at a time, %.1f points from those without Bifrost, "+
		"and %.1f under load; %d failed, no lease left\n", share, *alone[0].PrefixHitRatio, single, busy, results[1].Failed)
	return errors.Join(wrong...)
}

// measure starts servers and a contender before them, and plays.
func measure(ctx context.Context, name, policy string, speed float64, play func(*traffic.Client, func() error) []traffic.Sample) (samples []traffic.Sample, err error) {
	config, err := traffic.ServerConfig(16384)
	if err != nil {
		return nil, err
	}
	config.Speed = speed
	f, err := traffic.StartFleet(4, config)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	handler, router, stop, err := front(ctx, name, policy, f.Endpoints())
	if err != nil {
		return nil, err
	}
	defer stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	c := traffic.NewClient("http://" + l.Addr().String())
	defer c.Close()
	idle := func() error { return waitIdle(router) }
	samples = play(c, idle)
	return samples, errors.Join(ctx.Err(), idle())
}

// waitIdle waits for the end of all requests: some end a moment after their clients
// have all.
func waitIdle(router *endpick.Router) error {
	for until := time.Now().Add(30 * time.Second); router.Stats().OpenLeases > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			return fmt.Errorf("%d leases are left open", router.Stats().OpenLeases)
		}
	}
	return nil
}

// front is a contender.
func front(ctx context.Context, name, policy string, endpoints []endpick.Endpoint) (http.Handler, *endpick.Router, func(), error) {
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

// library is a proxy of the standard library's with endpick's transport.
func library(policy string, endpoints []endpick.Endpoint) (http.Handler, *endpick.Router, func(), error) {
	config, err := preset.ByName(policy)
	if err != nil {
		return nil, nil, nil, err
	}
	config.Endpoints, config.Seed = endpoints, 1
	router, err := endpick.New(config)
	if err != nil {
		return nil, nil, nil, err
	}
	routed, err := transport.New(transport.Config{Router: router})
	if err != nil {
		return nil, nil, nil, err
	}
	return &httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}, Transport: routed, ErrorHandler: transport.ErrorHandler, FlushInterval: -1}, router, func() {}, nil
}
