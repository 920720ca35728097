// Bifrost is a small gateway over Bifrost's core in which endpick chooses the servers, and
// a comparison with Bifrost's own choice, which is random.
//
//	go run .                                           compares, in two minutes
//	go run . -listen :8080 http://a:8000 http://b:8000  is the gateway, in front of these servers
//
// The comparison starts simulated vLLM servers, puts Bifrost in front of them with each
// way of choosing, and plays the same conversations through it over real HTTP and SSE;
// then through the library's own transport, without Bifrost. Under load, two equal runs
// differ by two points in what is cached, so both are played again in step, pair by pair.
// It exits with 0 if no request failed, no lease is left, endpick's median TTFT is at most
// a quarter of random's, and as much of the prompts was cached in step as without Bifrost,
// to within a point.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	bifrost "github.com/maximhq/bifrost/core"
	"github.com/maximhq/bifrost/core/schemas"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/examples/bifrost/adapter"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport/seam"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	w := traffic.Workload{
		Groups: 16, SystemTokens: 3000, QuestionTokens: 80, OutputTokens: 48, Turns: 3, Think: 400 * time.Millisecond, Seed: 1,
	}
	flag.DurationVar(&w.Duration, "duration", 20*time.Second, "how long conversations start, for each way of choosing")
	flag.Float64Var(&w.Rate, "rate", 16, "mean `requests` per second")
	policy := flag.String("policy", "marginal-delay", "endpick's policy")
	listen := flag.String("listen", "", "the `address` of the gateway; empty: compare")
	pairs := flag.Int("pairs", 5, "how many times both are played in step")
	flag.Parse()
	run := func() error { return compare(ctx, &w, *policy, *pairs, os.Stdout, os.Stderr) }
	if *listen != "" {
		run = func() error { return serve(ctx, *listen, *policy, flag.Args()) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bifrost:", err)
		os.Exit(1)
	}
}

// serve is the gateway.
func serve(ctx context.Context, listen, policy string, servers []string) error {
	var endpoints []endpick.Endpoint
	for _, address := range servers {
		endpoints = append(endpoints, endpick.Endpoint{Address: address})
	}
	b, _, err := start(ctx, policy, endpoints)
	if err != nil {
		return err
	}
	defer b.Shutdown()
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: &gateway{b}, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// seed is the seed of everything random, so that comparisons use the same numbers.
const seed = 1

// random is Bifrost's own choice, not a policy of endpick.
const random = "random"

// start starts a Bifrost in front of these servers.
func start(ctx context.Context, policy string, endpoints []endpick.Endpoint) (*bifrost.Bifrost, *endpick.Router, error) {
	name := policy
	if policy == random {
		name = "round-robin" // the router then only lists the servers
	}
	config, err := all.ByName(name)
	if err != nil {
		return nil, nil, err
	}
	config.Endpoints, config.Seed = endpoints, seed
	router, err := endpick.New(config)
	if err != nil {
		return nil, nil, err
	}
	c := schemas.BifrostConfig{Account: &adapter.Account{Router: router}, Logger: bifrost.NewNoOpLogger(), InitialPoolSize: 100}
	if policy != random {
		a, err := adapter.New(adapter.Config{Config: seam.Config{Router: router}})
		if err != nil {
			return nil, nil, err
		}
		c.KeySelector, c.LLMPlugins = a.SelectKey, []schemas.LLMPlugin{a}
	}
	b, err := bifrost.Init(ctx, c)
	return b, router, err
}
