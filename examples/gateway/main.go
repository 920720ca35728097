// Command gateway shows endpick at work behind an httputil.ReverseProxy.
//
//	gateway [-duration 20s] [-policies round-robin,least-loaded,lmetric,marginal-delay] [-format table|json] …
//
// starts model servers and a gateway in front of them, all over real HTTP on
// loopback, sends the same conversations through under each policy, and prints
// what a client measured. With -slo-ttft and -slo-tpot the requests ask for
// latencies, and the share of those that got them is printed too.
//
//	gateway -backend URL -backend URL… [-single URL] [-api chat|completions|messages|responses] [-repeat N] …
//
// does the same with servers that are there, without touching them: what is in their
// caches stays, and each policy gets conversations of its own, which none of them
// has seen. With -single the conversations are played against one more server, to
// see what one cache of the same size would have held.
//
//	gateway -listen ADDR [-admin ADDR] [-backend URL]… [-backend-file FILE] [-policy NAME] [-grace 30s]
//
// is a gateway that serves until it is interrupted, with /readyz. Without
// -backend and -backend-file it starts model servers of its own, which serve
// the model demo-8b. Prometheus metrics at /metrics and a page of its decisions
// at /debug/endpick are on a port of their own, for the operator: they tell
// what is cached where, and so of other clients' prompts.
//
// The policy predicted-latency learns from the responses as they come, and
// keeps to the targets in x-slo-ttft-ms and x-slo-tpot-ms. The page shows what
// was predicted against what came, how well the models do, and how many targets
// were met.
//
// With -queue, requests are held in the gateway while the servers are full, and
// leave it by priority, the tenants taking turns. A request that does not fit
// gets 429, one that has waited too long 503, both with Retry-After.
//
//	gateway -config FILE [-check]
//
// serves as a file says, with tenants, keys, policies for models, TLS and a
// recording, and follows its changes: docs/gateway.md.
//
//	gateway diagnose [-price 1.25] [-cached 0.25] [-tenant NAME] [-session NAME] FILE…
//
// reads recordings and says which place in which client's prompts kept them from
// being found in a cache, and what that has cost.
//
// Any client can write any header, so the gateway reads no others unless
// -trust-headers says that something in front of it has set or checked them:
// then X-Endpick-Priority is how important a request is (below zero it is
// answered with 429 if no server can meet its target), X-Endpick-Session the
// conversation that it belongs to, and OpenAI-Organization its tenant.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the command without its process. It returns the exit status: 2 for
// invalid arguments, 1 for failures.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "diagnose" {
		return diagnoseCommand(args[1:], stdout, stderr)
	}
	o, err := parseOptions(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "gateway: %v\n", err)
		return 2
	}
	if o.check {
		err = check(o.config, stdout, stderr)
	} else if o.listen != "" || o.config != "" {
		err = serve(ctx, o, stderr)
	} else {
		err = compare(ctx, o, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintf(stderr, "gateway: %v\n", err)
		return 1
	}
	return 0
}

// check reads a settings file and prints a summary.
func check(path string, stdout, stderr io.Writer) error {
	s, _, err := readSettings(path)
	if err != nil {
		return err
	}
	for _, w := range s.warnings() {
		fmt.Fprintf(stderr, "gateway: %s: warning: %s\n", path, w)
	}
	_, err = fmt.Fprintf(stdout, "%s is valid: %s\n", path, s.summary())
	return err
}
