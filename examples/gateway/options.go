package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/endpick/endpick/internal/lab/traffic"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/slo"
)

// options are the parsed flags.
type options struct {
	traffic.Workload
	policies []string
	format   string
	slo      endpick.SLO // of every request
	api      string
	model    string // of backends
	single   string // URL of a single server for comparison; empty: none
	repeat   int

	config   string // path of the settings; empty: flags only
	check    bool   // only check the settings
	listen   string
	admin    string
	trust    bool
	record   string
	backends []string
	// backendFile names the model servers, and is followed. Empty: only backends.
	backendFile string
	policy      string
	grace       time.Duration

	queue        int
	queueTimeout time.Duration

	endpoints int
	kvTokens  int
}

// Flags that belong to only one of the two modes.
var (
	compareFlags = []string{"duration", "policies", "rate", "groups", "system-tokens", "question-tokens", "output-tokens", "turns", "think", "slo-ttft", "slo-tpot", "format", "api", "model", "single", "repeat"}
	serveFlags   = []string{"admin", "backend-file", "policy", "grace", "trust-headers", "record"}
	serverFlags  = []string{"endpoints", "kv-tokens"} // of embedded servers
)

const usage = `Usage:
  gateway [-policies NAME,NAME…] [-backend URL]… [flags]       compare policies
  gateway -listen ADDR [-policy NAME] [-backend URL]… [flags]  serve
  gateway -config FILE [-check]                                serve, as docs/gateway.md explains
  gateway diagnose [flags] FILE…                               explain cache misses in recordings

Policies: %s.

Serving: the gateway takes OpenAI-style requests, with these headers:
  x-slo-ttft-ms, x-slo-tpot-ms  latency targets, in milliseconds
and with -trust-headers also:
  x-endpick-priority            higher goes first; below 0 may be answered with 429
  x-endpick-session             ties the turns of a conversation together
  openai-organization           the tenant, for turns in the queue (-queue)
It has /readyz, and on another port, for its operator, /metrics and /debug/endpick.

Flags:
`

func parseOptions(args []string, stderr io.Writer) (*options, error) {
	o := &options{policies: []string{"round-robin", "least-loaded", "lmetric", "marginal-delay"}}
	f := flag.NewFlagSet("gateway", flag.ContinueOnError)
	f.SetOutput(io.Discard) // an error is one line, and the usage is for -h
	f.Usage = func() {}

	f.DurationVar(&o.Duration, "duration", 20*time.Second, "how long new conversations start, for each policy; then those in progress end")
	f.Func("policies", "policies to compare, separated by commas (default round-robin,least-loaded,lmetric,marginal-delay)", func(s string) error {
		o.policies = strings.Split(s, ",")
		return nil
	})
	f.Float64Var(&o.Rate, "rate", 16, "mean `requests` per second")
	f.IntVar(&o.Groups, "groups", 16, "groups of users; each shares a system prompt")
	f.IntVar(&o.SystemTokens, "system-tokens", 3000, "length of a system prompt")
	f.IntVar(&o.QuestionTokens, "question-tokens", 80, "length of a question")
	f.IntVar(&o.OutputTokens, "output-tokens", 48, "mean length of an answer")
	f.IntVar(&o.Turns, "turns", 3, "questions in a conversation")
	f.DurationVar(&o.Think, "think", 400*time.Millisecond, "mean pause before the next question of a conversation")
	f.DurationVar(&o.slo.TTFT, "slo-ttft", 0, "target for the time to first token; the report says how often it was met; 0: no target")
	f.DurationVar(&o.slo.TPOT, "slo-tpot", 0, "target for the time per output token, likewise")
	f.StringVar(&o.format, "format", "table", "table or json")
	f.StringVar(&o.api, "api", "chat", "API that clients use: "+traffic.APINames())
	f.StringVar(&o.model, "model", "", "`name` of the model to ask for (default: the first one that the first -backend lists)")
	f.StringVar(&o.single, "single", "", "`URL` of one server with as many slots as all of -backend together, which serves the same conversations without a gateway")
	f.IntVar(&o.repeat, "repeat", 1, "how many times each policy is played, with new conversations each time")

	f.StringVar(&o.config, "config", "", "serve with the configuration in this `file`, and follow its changes; no other flags are needed, or allowed")
	f.BoolVar(&o.check, "check", false, "only check the file of -config")
	f.StringVar(&o.record, "record", "", "record requests in this `file`: lengths, hashes and times")
	f.StringVar(&o.listen, "listen", "", "serve on this `address` until interrupted, instead of comparing policies")
	f.StringVar(&o.admin, "admin", "127.0.0.1:0", "serve metrics and the debug page on this `address`; not for clients, because they reveal others' prompts")
	f.BoolVar(&o.trust, "trust-headers", false, "take priority, session and tenant from request headers, which another gateway must have set or checked")
	f.Func("backend", "`URL` of a model server; repeat for each (default: embedded servers)", func(s string) error {
		if err := checkBackend(s); err != nil {
			return err
		}
		if slices.Contains(o.backends, s) {
			return errors.New("given twice")
		}
		o.backends = append(o.backends, s)
		return nil
	})
	f.StringVar(&o.backendFile, "backend-file", "", "`file` with the URL of a model server on each line, read every second; servers come and go with their lines")
	f.StringVar(&o.policy, "policy", "marginal-delay", "policy to serve with")
	f.DurationVar(&o.grace, "grace", 30*time.Second, "how long streams may continue after an interrupt")

	f.IntVar(&o.queue, "queue", 0, "hold up to this many `requests` while the servers are full; 0: hold none")
	f.DurationVar(&o.queueTimeout, "queue-timeout", 30*time.Second, "how long a request may be held")
	f.IntVar(&o.endpoints, "endpoints", 4, "embedded model servers")
	f.IntVar(&o.kvTokens, "kv-tokens", 16384, "tokens in the KV cache of each embedded server")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of the conversations and of the router (default 1 for comparing, random for serving: replicas should differ)")

	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(stderr, usage, all.Usage())
			f.SetOutput(stderr)
			f.PrintDefaults()
			return nil, err
		}
		return nil, fmt.Errorf("%w (gateway -h lists the flags)", err)
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q; a configuration file is given with -config", f.Arg(0))
	}
	given := map[string]bool{}
	f.Visit(func(x *flag.Flag) { given[x.Name] = true })
	if !given["listen"] && !given["seed"] {
		o.Seed = 1
	}
	return o, o.validate(given)
}

func (o *options) validate(given map[string]bool) error {
	without := func(names []string, reason string) error {
		for _, name := range names {
			if given[name] {
				return fmt.Errorf("-%s %s", name, reason)
			}
		}
		return nil
	}
	if given["config"] {
		for name := range given {
			if name != "config" && name != "check" {
				return fmt.Errorf("-%s: the file of -config says all", name)
			}
		}
		return nil
	}
	if given["check"] {
		return errors.New("-check needs -config")
	}
	policies := o.policies
	if given["listen"] {
		if o.listen == "" {
			return errors.New("-listen is empty")
		}
		if o.admin == "" {
			return errors.New("-admin is empty")
		}
		policies = []string{o.policy}
		if err := without(compareFlags, "is for comparing policies, without -listen"); err != nil {
			return err
		}
	} else if err := without(serveFlags, "needs -listen"); err != nil {
		return err
	}
	if len(o.backends) > 0 && o.backendFile != "" {
		return errors.New("-backend and -backend-file can't both be given")
	}
	if len(o.backends) > 0 || o.backendFile != "" {
		if err := without(serverFlags, "is for embedded servers, without -backend"); err != nil {
			return err
		}
	}
	if len(o.backends) == 0 {
		if err := without([]string{"model", "single"}, "needs -backend"); err != nil {
			return err
		}
	}
	if o.single != "" {
		if err := checkBackend(o.single); err != nil {
			return fmt.Errorf("-single: %w", err)
		}
	}
	if _, ok := traffic.APIs[o.api]; !ok {
		return fmt.Errorf("-api %q is none of %s", o.api, traffic.APINames())
	}
	if given["queue-timeout"] && o.queue == 0 {
		return errors.New("-queue-timeout needs -queue")
	}
	for i, name := range policies {
		if _, err := all.ByName(name); err != nil {
			return err
		}
		if slices.Contains(policies[:i], name) {
			return fmt.Errorf("policy %q is given twice", name)
		}
	}
	switch {
	case o.format != "table" && o.format != "json":
		return fmt.Errorf("-format %q is neither table nor json", o.format)
	case o.Duration <= 0:
		return fmt.Errorf("-duration %v is not above zero", o.Duration)
	case !(o.Rate > 0) || math.IsInf(o.Rate, 1):
		return fmt.Errorf("-rate %v is not above zero and finite", o.Rate)
	case o.Groups < 1:
		return fmt.Errorf("-groups %d is below 1", o.Groups)
	case o.SystemTokens < 1:
		return fmt.Errorf("-system-tokens %d is below 1", o.SystemTokens)
	case o.QuestionTokens < 1:
		return fmt.Errorf("-question-tokens %d is below 1", o.QuestionTokens)
	case o.OutputTokens < 1:
		return fmt.Errorf("-output-tokens %d is below 1", o.OutputTokens)
	case o.Turns < 1:
		return fmt.Errorf("-turns %d is below 1", o.Turns)
	case o.Think < 0:
		return fmt.Errorf("-think %v is negative", o.Think)
	case o.slo.TTFT != 0 && (o.slo.TTFT < slo.MinTarget || o.slo.TTFT > slo.MaxTarget):
		return fmt.Errorf("-slo-ttft %v is not within %v and %v", o.slo.TTFT, slo.MinTarget, slo.MaxTarget)
	case o.slo.TPOT != 0 && (o.slo.TPOT < slo.MinTarget || o.slo.TPOT > slo.MaxTarget):
		return fmt.Errorf("-slo-tpot %v is not within %v and %v", o.slo.TPOT, slo.MinTarget, slo.MaxTarget)
	case o.queue < 0:
		return fmt.Errorf("-queue %d is negative", o.queue)
	case o.queueTimeout <= 0:
		return fmt.Errorf("-queue-timeout %v is not above zero", o.queueTimeout)
	case o.endpoints < 1:
		return fmt.Errorf("-endpoints %d is below 1", o.endpoints)
	case o.grace < 0:
		return fmt.Errorf("-grace %v is negative", o.grace)
	case o.repeat < 1:
		return fmt.Errorf("-repeat %d is below 1", o.repeat)
	case len(o.backends) == 0 && o.kvTokens < o.Longest():
		return fmt.Errorf("-kv-tokens %d can't hold a conversation of %d tokens", o.kvTokens, o.Longest())
	}
	return nil
}

// settings converts the flags of a gateway that serves.
func (o *options) settings() *settings {
	s := defaultSettings()
	s.Listen, s.Admin, s.Policy, s.Seed, s.TrustHeaders = o.listen, o.admin, o.policy, o.Seed, o.trust
	if o.backendFile != "" {
		s.Discover = &discoverSettings{File: o.backendFile, Interval: time.Second}
	}
	s.SharedCache = true // tenants take turns in the queue, but share the servers' caches
	s.Timeouts.Grace, s.Timeouts.Body, s.Timeouts.Unread = o.grace, 0, 0
	s.Limits.Connections = 0
	s.Log.Requests = "none"
	for _, url := range o.backends {
		s.Endpoints = append(s.Endpoints, endpointSettings{URL: url})
	}
	if o.queue > 0 {
		s.Queue = &queueSettings{Requests: o.queue, Timeout: o.queueTimeout}
	}
	if o.record != "" {
		s.Record = &recordSettings{File: o.record}
	}
	return s
}
