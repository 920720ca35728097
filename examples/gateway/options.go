package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/endpick/endpick/scorer/preset/all"
)

// options are the parsed flags of a gateway that serves.
type options struct {
	config string // path of the settings; empty: flags only
	check  bool   // only check the settings

	settings *settings // that the flags stand for

	servers, kvTokens int // embedded servers
}

const usage = `Usage:
  gateway -listen ADDR [-policy NAME] [-backend URL]… [flags]  serve
  gateway -config FILE [-check]                                serve, as docs/gateway.md explains
  gateway -version
  gateway diagnose [flags] FILE…                               explain cache misses in recordings

Policies: %s.

The gateway takes requests to the APIs of docs/apis.md, with these headers:
  x-slo-ttft-ms, x-slo-tpot-ms  latency targets, in milliseconds
and with -trust-headers also:
  x-endpick-priority            higher goes first; below 0 may be answered with 429
  x-endpick-session             ties the turns of a conversation together
  openai-organization           the tenant, for turns in the queue (-queue)
It has /readyz, and on another port, for its operator, /metrics and /debug/endpick.

Flags:
`

func parseOptions(args []string, stderr io.Writer) (*options, error) {
	s := defaultSettings()
	s.SharedCache = true // tenants take turns in the queue, but share the servers' caches
	s.Timeouts.Body, s.Timeouts.Unread, s.Limits.Connections = 0, 0, 0
	o, queue, discover, record := &options{settings: s}, &queueSettings{}, &discoverSettings{Interval: time.Second}, &recordSettings{}
	f := flag.NewFlagSet("gateway", flag.ContinueOnError)
	f.SetOutput(io.Discard) // an error is one line, and the usage is for -h
	f.Usage = func() {}
	f.StringVar(&o.config, "config", "", "serve with the configuration in this `file`, and follow its changes; no other flags are needed, or allowed")
	f.BoolVar(&o.check, "check", false, "only check the file of -config")
	f.StringVar(&s.Log.Requests, "log", "failed", "`which` requests are logged: all, failed (refused and abandoned ones among them) or none")
	f.StringVar(&s.Listen, "listen", "", "serve on this `address` until interrupted")
	f.StringVar(&s.Admin, "admin", "127.0.0.1:0", "serve metrics and the debug page on this `address`; not for clients, because they reveal what is cached where, though no text of prompts")
	f.BoolVar(&s.TrustHeaders, "trust-headers", false, "take priority, session and tenant from request headers, which another gateway must have set or checked")
	f.StringVar(&record.File, "record", "", "record requests in this `file`: lengths, hashes and times")
	f.Func("backend", "`URL` of a model server; repeat for each (default: embedded servers)", func(url string) error {
		s.Endpoints = append(s.Endpoints, endpointSettings{URL: url})
		return nil // an error would be shown with the URL, which may have a password
	})
	f.StringVar(&discover.File, "backend-file", "", "`file` with the URL of a model server on each line, read every second; servers come and go with their lines")
	f.StringVar(&s.Policy, "policy", "marginal-delay", "policy to serve with")
	f.DurationVar(&s.Timeouts.Grace, "grace", 30*time.Second, "how long streams may continue after an interrupt")
	f.IntVar(&queue.Requests, "queue", 0, "hold up to this many `requests` while the servers are full; 0: hold none")
	f.DurationVar(&queue.Timeout, "queue-timeout", 30*time.Second, "how long a request may be held")
	f.IntVar(&o.servers, "endpoints", 4, "embedded model servers")
	f.IntVar(&o.kvTokens, "kv-tokens", 16384, "tokens in the KV cache of each embedded server")
	f.Uint64Var(&s.Seed, "seed", 0, "seed of the router (default random: replicas should differ)")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(stderr, usage, all.Usage())
		f.SetOutput(stderr)
		f.PrintDefaults()
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w (gateway -h lists the flags)", err)
	case f.NArg() > 0:
		return nil, errors.New("there is an argument that belongs to no flag; a configuration file is given with -config")
	}
	given := map[string]bool{}
	f.Visit(func(x *flag.Flag) { given[x.Name] = true })
	if discover.File != "" {
		s.Discover = discover
	}
	if record.File != "" {
		s.Record = record
	}
	if queue.Requests != 0 {
		s.Queue = queue
	}
	return o, o.validate(given, queue)
}

func (o *options) validate(given map[string]bool, queue *queueSettings) error {
	if o.config != "" {
		for name := range given {
			if name != "config" && name != "check" {
				return fmt.Errorf("-%s: with -config, settings come from the file alone", name)
			}
		}
		return nil
	}
	s := o.settings
	for i, e := range s.Endpoints {
		if err := checkBackend(e.URL); err != nil {
			return fmt.Errorf("-backend %d: %w", i+1, err)
		}
		if slices.ContainsFunc(s.Endpoints[:i], func(b endpointSettings) bool { return b.URL == e.URL }) {
			return fmt.Errorf("-backend %d: given twice", i+1)
		}
	}
	own := len(s.Endpoints) == 0 && s.Discover == nil
	switch {
	case o.check:
		return errors.New("-check needs -config")
	case s.Listen == "":
		return errors.New("give -listen or -config (gateway -h lists the flags)")
	case !slices.Contains(loggedRequests, s.Log.Requests):
		return fmt.Errorf("-log %q is none of %s", s.Log.Requests, strings.Join(loggedRequests, ", "))
	case s.Admin == "":
		return errors.New("-admin is empty")
	case len(s.Endpoints) > 0 && s.Discover != nil:
		return errors.New("-backend and -backend-file can't both be given")
	case !own && (given["endpoints"] || given["kv-tokens"]):
		return errors.New("-endpoints and -kv-tokens are for embedded servers, without -backend")
	case given["queue-timeout"] && queue.Requests == 0:
		return errors.New("-queue-timeout needs -queue")
	case queue.Requests < 0:
		return fmt.Errorf("-queue %d is negative", queue.Requests)
	case queue.Timeout <= 0:
		return fmt.Errorf("-queue-timeout %v is not above zero", queue.Timeout)
	case o.servers < 1:
		return fmt.Errorf("-endpoints %d is below 1", o.servers)
	case o.kvTokens < 1024:
		return fmt.Errorf("-kv-tokens %d is below 1024", o.kvTokens)
	case s.Timeouts.Grace < 0:
		return fmt.Errorf("-grace %v is negative", s.Timeouts.Grace)
	}
	_, err := all.ByName(s.Policy)
	return err
}
