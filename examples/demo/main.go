// Command demo compares policies: it sends the same multi-turn conversations through a
// gateway under each of them, over real HTTP and SSE, and prints what the clients measured.
// It links the library alone; what an operator needs besides, metrics, traces, engines' load
// reports and replicas, is in examples/gateway.
//
//	demo
//
// starts servers of its own for each policy, which simulate an engine, and plays all policies
// at the same time. It takes some ten seconds.
//
//	demo -backend URL -backend URL… [-single URL] [-api messages] [-repeat N] …
//
// compares them on servers that are there, one policy after the other. Nothing on the servers
// is changed: what is in their caches stays, and each policy gets conversations of its own,
// which no server has seen. With -single the conversations are also played against one more
// server, to see what one cache of the same size would have held.
//
//	demo -serve ADDR
//
// simulates one engine, to try a gateway with.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/slo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the command without its process. It returns the exit status: 2 for invalid
// arguments, 1 for failures.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	status := 2
	if err == nil {
		do := compare
		if o.serve != "" {
			do = serve
		}
		status, err = 1, do(ctx, o, stdout, stderr)
	}
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintf(stderr, "demo: %v\n", err)
	return status
}

// options are the parsed flags.
type options struct {
	traffic.Workload
	policies []string
	format   string
	slo      endpick.SLO // of every request
	api      string

	endpoints int // embedded servers of each policy
	kvTokens  int // of each server

	backends []string // URLs; none: embedded servers
	model    string   // of backends
	single   string   // URL of a single server for comparison; empty: none
	repeat   int

	serve string  // address of a simulated engine, instead of a comparison
	speed float64 // of it
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("demo", flag.ContinueOnError)
	f.SetOutput(io.Discard) // an error is one line, and the usage is for -h
	f.Usage = func() {}
	policies := f.String("policies", "round-robin,least-loaded,lmetric,marginal-delay", "policies to compare, separated by commas: "+all.Usage())
	f.DurationVar(&o.Duration, "duration", 5*time.Second, "how long new conversations start, under each policy; then those in progress end")
	f.Float64Var(&o.Rate, "rate", 16, "mean `requests` per second under each policy")
	f.IntVar(&o.Groups, "groups", 16, "groups of users; each shares a system prompt")
	f.IntVar(&o.SystemTokens, "system-tokens", 3000, "length of a system prompt")
	f.IntVar(&o.QuestionTokens, "question-tokens", 80, "length of a question")
	f.IntVar(&o.OutputTokens, "output-tokens", 48, "mean length of an answer")
	f.IntVar(&o.Turns, "turns", 3, "questions in a conversation")
	f.DurationVar(&o.Think, "think", 400*time.Millisecond, "mean pause before the next question of a conversation")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the conversations and of the router")
	f.DurationVar(&o.slo.TTFT, "slo-ttft", 0, "target for the time to first token; the report says how often it was met; 0: no target")
	f.DurationVar(&o.slo.TPOT, "slo-tpot", 0, "target for the time per output token, like -slo-ttft")
	f.StringVar(&o.format, "format", "table", "table or json")
	f.StringVar(&o.api, "api", "chat", "API that clients use: "+traffic.APINames())
	f.IntVar(&o.endpoints, "endpoints", 4, "embedded servers of each policy")
	f.IntVar(&o.kvTokens, "kv-tokens", 16384, "tokens in the KV cache of each embedded server")
	f.Func("backend", "`URL` of a model server; repeat for each (default: embedded servers)", func(s string) error {
		if slices.Contains(o.backends, s) {
			return errors.New("given twice")
		}
		o.backends = append(o.backends, s)
		return checkURL(s)
	})
	f.StringVar(&o.model, "model", "", "`name` of the model to ask for (default: the first one that the first -backend lists)")
	f.StringVar(&o.single, "single", "", "`URL` of one server with as many slots as all of -backend together, which serves the same conversations without a gateway")
	f.IntVar(&o.repeat, "repeat", 1, "how many times each policy is played, with new conversations each time")
	f.StringVar(&o.serve, "serve", "", "only simulate an engine at this `address`, with -kv-tokens, -model and -speed, until interrupted")
	f.Float64Var(&o.speed, "speed", 1, "of -serve: how many times as fast as an A100 with an 8B model")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		f.SetOutput(stderr)
		fmt.Fprint(stderr, "demo [flags]                 compares policies on simulated engines\n",
			"demo -backend URL… [flags]   compares them on your servers\n",
			"demo -serve ADDR [flags]     simulates one engine\n\nFlags:\n")
		f.PrintDefaults()
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w (demo -h lists the flags)", err)
	case f.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	o.policies = strings.Split(*policies, ",")
	given := map[string]bool{}
	f.Visit(func(x *flag.Flag) { given[x.Name] = true })
	return o, o.validate(given)
}

// checkURL returns an error if a server can't be at this URL.
func checkURL(s string) error {
	if u, err := url.Parse(s); err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("want http://HOST[:PORT] or https://…")
	}
	return nil
}

func (o *options) validate(given map[string]bool) error {
	own := len(o.backends) == 0 && o.serve == ""
	switch {
	case own && given["model"]:
		return errors.New("-model needs -backend")
	case own && given["single"]:
		return errors.New("-single needs -backend")
	case o.serve != "" && len(o.backends) > 0:
		return errors.New("-serve and -backend can't both be given")
	case !own && o.serve == "" && (given["endpoints"] || given["kv-tokens"]):
		return errors.New("-endpoints and -kv-tokens are for embedded servers, without -backend")
	case o.single != "" && checkURL(o.single) != nil:
		return fmt.Errorf("-single: %w", checkURL(o.single))
	case o.format != "table" && o.format != "json":
		return fmt.Errorf("-format %q is neither table nor json", o.format)
	case o.Duration <= 0:
		return fmt.Errorf("-duration %v is not above zero", o.Duration)
	case !(o.Rate > 0) || math.IsInf(o.Rate, 1):
		return fmt.Errorf("-rate %v is not above zero and finite", o.Rate)
	case o.Think < 0:
		return fmt.Errorf("-think %v is negative", o.Think)
	}
	if _, ok := traffic.APIs[o.api]; !ok {
		return fmt.Errorf("-api %q is none of %s", o.api, traffic.APINames())
	}
	for i, name := range o.policies {
		if _, err := all.ByName(name); err != nil {
			return err
		}
		if slices.Contains(o.policies[:i], name) {
			return fmt.Errorf("policy %q is given twice", name)
		}
	}
	for name, n := range map[string]int{
		"groups": o.Groups, "system-tokens": o.SystemTokens, "question-tokens": o.QuestionTokens, "output-tokens": o.OutputTokens,
		"turns": o.Turns, "endpoints": o.endpoints, "repeat": o.repeat,
	} {
		if n < 1 {
			return fmt.Errorf("-%s %d is below 1", name, n)
		}
	}
	for name, target := range map[string]time.Duration{"ttft": o.slo.TTFT, "tpot": o.slo.TPOT} {
		if target != 0 && (target < slo.MinTarget || target > slo.MaxTarget) {
			return fmt.Errorf("-slo-%s %v is not within %v and %v", name, target, slo.MinTarget, slo.MaxTarget)
		}
	}
	if own && o.kvTokens < o.Longest() {
		return fmt.Errorf("-kv-tokens %d can't hold a conversation of %d tokens", o.kvTokens, o.Longest())
	}
	return nil
}
