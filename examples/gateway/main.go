// Command gateway is a reverse proxy in front of model servers, for their operator: it links
// what comparing policies does not need, metrics for Prometheus, traces over gRPC, the
// engines' load reports and events, and other gateways over NATS. The comparison of policies
// is examples/demo, which links the library alone.
//
//	gateway -listen ADDR [-admin ADDR] [-backend URL]… [-backend-file FILE] [-policy NAME] [-grace 30s]
//
// serves until it is interrupted, with /readyz. Without -backend and -backend-file it starts
// model servers of its own, which serve the model demo-8b. Prometheus metrics at /metrics and
// a page of its decisions at /debug/endpick are on a port of their own, for the operator: they
// tell what is cached where, and so of other clients' prompts.
//
// The policy predicted-latency learns from the responses as they come, and keeps to the
// targets in x-slo-ttft-ms and x-slo-tpot-ms. The page shows what was predicted against what
// came, how well the models do, and how many targets were met.
//
// With -queue, requests are held in the gateway while the servers are full, and leave it by
// priority, the tenants taking turns. A request that does not fit gets 429, one that has
// waited too long 503, both with Retry-After.
//
//	gateway -config FILE [-check]
//
// serves as a file says, with tenants, keys, policies for models, TLS and a recording, and
// follows its changes: docs/gateway.md.
//
//	gateway diagnose [-price 1.25] [-cached 0.25] [-tenant NAME] [-session NAME] FILE…
//
// reads recordings and says which place in which client's prompts kept them from being found
// in a cache, and what that has cost.
//
// Any client can write any header, so the gateway reads no others unless -trust-headers says
// that something in front of it has set or checked them: then X-Endpick-Priority is how
// important a request is (below zero it is answered with 429 if no server can meet its
// target), X-Endpick-Session the conversation that it belongs to, and OpenAI-Organization its
// tenant.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the command without its process. It returns the exit status: 2 for invalid
// arguments, 1 for failures.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	do, err := parse(ctx, args, stdout, stderr)
	status := 2
	if err == nil {
		status, err = 1, do()
	}
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintf(stderr, "gateway: %v\n", err)
	return status
}

// parse returns what the arguments ask for.
func parse(ctx context.Context, args []string, stdout, stderr io.Writer) (do func() error, err error) {
	if len(args) > 0 && args[0] == "diagnose" {
		d, err := parseDiagnosis(args[1:], stderr)
		return func() error { return d.run(stdout) }, err
	}
	if slices.Equal(args, []string{"-version"}) {
		_, err := fmt.Fprintln(stdout, "endpick", version(), runtime.Version())
		return func() error { return nil }, err
	}
	o, err := parseOptions(args, stderr)
	if err == nil && o.check {
		return func() error { return check(o.config, stdout, stderr) }, nil
	}
	return func() error { return serve(ctx, o, stderr) }, err
}

// check reads a settings file and prints a summary.
func check(path string, stdout, stderr io.Writer) error {
	s, _, err := readSettings(path)
	if err == nil {
		err = s.validateFiles()
	}
	if err != nil {
		return err
	}
	for _, w := range append(s.warnings(), s.unserved(s.endpoints())...) {
		fmt.Fprintf(stderr, "gateway: %s: warning: %s\n", path, w)
	}
	_, err = fmt.Fprintf(stdout, "%s is valid: %s\n", path, s.summary())
	return err
}
