// Caddy is Caddy with endpick in it, and a comparison of endpick with Caddy's own
// load balancing.
//
//	GOWORK=off go run .                           compares, in two minutes
//	GOWORK=off go run . run --config Caddyfile    is Caddy, with all its commands
//
// The comparison starts simulated servers, puts Caddy in front of them with each of
// the load balancers in turn, and plays the same conversations through it over real
// HTTP and SSE; then through the library's own transport, without Caddy. How much is
// cached in such a run depends on tiny differences in timing, and on how ties are
// broken: two equal runs differ by up to two points. So other conversations are then
// played in step, with both and the same seed, where only routing can make a
// difference.
//
// It exits with 0 if no request failed, endpick's median TTFT is at most a quarter of
// each of the others', and as much of the prompts was cached as without Caddy, to
// within a point.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
	endpickcaddy "github.com/endpick/endpick/transport/caddy"
)

func main() {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		caddycmd.Main()
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	w := traffic.Workload{
		Groups: 16, SystemTokens: 3000, QuestionTokens: 80, OutputTokens: 48, Turns: 3, Think: 400 * time.Millisecond, Seed: 1,
	}
	flag.DurationVar(&w.Duration, "duration", 20*time.Second, "how long conversations start, for each way of balancing")
	flag.Float64Var(&w.Rate, "rate", 16, "mean `requests` per second")
	policy := flag.String("policy", "marginal-delay", "endpick's policy")
	pairs := flag.Int("pairs", 4, "how often both are played in step, above 0")
	flag.Parse()
	if *pairs < 1 {
		fmt.Fprintln(os.Stderr, "caddy: -pairs is above 0")
		os.Exit(2)
	}
	if err := compare(ctx, &w, *policy, *pairs, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "caddy:", err)
		os.Exit(1)
	}
}

// direct is endpick without Caddy.
const direct = "endpick, no Caddy"

// atOnce is the number of requests in a step.
const atOnce = 8

// compare plays the workload through each contender and prints a table.
func compare(ctx context.Context, w *traffic.Workload, policy string, pairs int, out, progress io.Writer) error {
	dir, err := os.MkdirTemp("", "caddy")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// Caddy removes its sockets some time after it has stopped, so each front gets its own.
	sockets := 0
	socket := func() string {
		sockets++
		return filepath.Join(dir, fmt.Sprint(sockets))
	}
	var results []traffic.Result
	for _, name := range []string{"random", "round_robin", "least_conn", "endpick", direct} {
		fmt.Fprintln(progress, name)
		samples, err := measure(ctx, w, name, policy, socket())
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
		return func(f *traffic.Fleet) (*traffic.Front, error) { return front(f, name, traffic.InStepPolicy, socket()) }
	}
	hits, err := traffic.PairHits(ctx, *w, pairs, atOnce, kvTokens, opener("endpick"), opener(direct))
	if err != nil {
		return fmt.Errorf("in step: %w", err)
	}
	return judge(results, &hits, out)
}

// kvTokens is the size of a server's cache.
const kvTokens = 16384

// judge says whether Caddy with endpick, the last but one, is as it should be.
func judge(results []traffic.Result, hits *traffic.Paired, out io.Writer) error {
	last := len(results) - 1
	with := results[last-1]
	var wrong []error
	for _, r := range results {
		if r.Failed > 0 {
			wrong = append(wrong, fmt.Errorf("%s: %d requests failed, the first: %w", r.Policy, r.Failed, r.FirstErr))
		}
		if r.TTFT == nil {
			return errors.Join(append(wrong, fmt.Errorf("%s: nothing was measured", r.Policy))...)
		}
	}
	worst := 0.0
	for _, r := range results[:last-1] {
		worst = max(worst, with.TTFT.P50/r.TTFT.P50)
	}
	apart := hits.Typical()
	if worst > 0.25 {
		wrong = append(wrong, fmt.Errorf("endpick's median TTFT is %.2f of another's", worst))
	}
	if math.Abs(apart) > 0.01 {
		wrong = append(wrong, fmt.Errorf("in step, endpick in Caddy and without are %.1f points apart", 100*apart))
	}
	fmt.Fprintf(out, "\nmedian TTFT at most %.2f of that of Caddy's own, %d failed; in step, hits in Caddy and without it: %s\n",
		worst, with.Failed, hits)
	return errors.Join(wrong...)
}

// measure starts servers and a contender in front of them, and plays the conversations.
func measure(ctx context.Context, w *traffic.Workload, name, policy, socket string) (samples []traffic.Sample, err error) {
	config, err := traffic.ServerConfig(kvTokens)
	if err != nil {
		return nil, err
	}
	f, err := traffic.StartFleet(4, config)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	before, err := front(f, name, policy, socket)
	if err != nil {
		return nil, err
	}
	defer func() { before.Client.Close(); err = errors.Join(err, before.Stop()) }()
	return before.Client.Play(ctx, w.Conversations(), func() {}), ctx.Err()
}

// dial returns a client for a socket.
func dial(socket string) *traffic.Client {
	c := traffic.NewClient("http://front")
	c.HTTP = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	return c
}

// front puts a contender in front of the servers.
func front(f *traffic.Fleet, name, policy, socket string) (*traffic.Front, error) {
	switch name {
	case direct:
		return library(f, policy, socket)
	case "endpick":
		lines := "dynamic endpick\n\ttransport endpick {\n\tpolicy " + policy + "\n\tseed 1\n"
		for _, m := range f.Members {
			lines += "\tendpoint " + m.Address + " {\n\t\tid " + m.ID + "\n\t}\n"
		}
		leases := func() int {
			if router := endpickcaddy.Router("default"); router != nil {
				return router.Stats().OpenLeases
			}
			return 0
		}
		return &traffic.Front{Client: dial(socket), Leases: leases, Stop: caddy.Stop}, load(lines+"\t}\n", socket)
	}
	lines := "lb_policy " + name + "\n\tto"
	for _, m := range f.Members {
		lines += " " + m.Address
	}
	return &traffic.Front{Client: dial(socket), Stop: caddy.Stop}, load(lines+"\n", socket)
}

// load runs Caddy with these lines in its proxy.
func load(lines, socket string) error {
	text := "{\n\tadmin off\n\tpersist_config off\n\tlog {\n\t\tlevel ERROR\n\t}\n}\nhttp:// {\n\tbind unix/" + socket + "\n\treverse_proxy {\n\t" + lines + "}\n}\n"
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), nil)
	if err != nil {
		return err
	}
	return caddy.Load(config, true)
}

// library is a proxy of the standard library with endpick's transport.
func library(f *traffic.Fleet, policy, socket string) (*traffic.Front, error) {
	config, err := all.ByName(policy)
	if err != nil {
		return nil, err
	}
	for _, m := range f.Members {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: m.ID, Address: m.Address})
	}
	config.Seed = 1 // so that ties are broken in the same way
	router, err := endpick.New(config)
	if err != nil {
		return nil, err
	}
	routed, err := transport.New(transport.Config{Router: router})
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler:           &httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}, Transport: routed, ErrorHandler: transport.ErrorHandler},
	}
	go func() { _ = server.Serve(l) }()
	stop := func() error {
		routed.CloseIdleConnections()
		return server.Close()
	}
	return &traffic.Front{Client: dial(socket), Leases: func() int { return router.Stats().OpenLeases }, Stop: stop}, nil
}
