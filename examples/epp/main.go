// Command epp is an endpoint picker for Envoy and the gateways that speak its protocol.
//
//	go run ./examples/epp
//
// runs one for a minute, with simulated model servers behind it and a client in front
// of it that plays Envoy's side message by message, under round-robin and under a
// policy of the library, and compares that with package transport in place of both.
//
//	go run ./examples/epp -listen :9002 -endpoints servers.txt
//
// is a picker that serves; docs/extproc.md has the Envoy in front of it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/scorer/preset/all"
)

// options are the parsed flags.
type options struct {
	traffic.Workload
	policy    string
	buffered  bool
	servers   int
	kvTokens  int // of each server
	listen    string
	endpoints string
	dns       string
	plaintext bool
	pairs     int
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("epp", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.policy, "policy", "marginal-delay", "policy: "+all.Usage())
	f.DurationVar(&o.Duration, "duration", 15*time.Second, "how long conversations start, each time")
	f.Float64Var(&o.Rate, "rate", 16, "mean `requests` per second")
	f.IntVar(&o.servers, "servers", 4, "modelled servers")
	f.IntVar(&o.kvTokens, "kv-tokens", 16384, "tokens in the KV cache of each")
	f.BoolVar(&o.buffered, "buffered", false, "send bodies in mode BUFFERED instead of FULL_DUPLEX_STREAMED; the first token then arrives together with the last")
	f.IntVar(&o.pairs, "pairs", 4, "how many times picker and transport are compared in lockstep, where only routing makes a difference")
	f.StringVar(&o.listen, "listen", "", "serve as a picker on this `address` until interrupted, instead of comparing")
	f.StringVar(&o.endpoints, "endpoints", "", "`file` with one ip:port per line, or a list in JSON; changes are followed")
	f.StringVar(&o.dns, "dns", "", "`name:port` whose addresses are the endpoints; changes are followed")
	f.BoolVar(&o.plaintext, "plaintext", false, "no TLS; otherwise the picker generates its own certificate, as gateways expect")
	o.Groups, o.SystemTokens, o.QuestionTokens, o.OutputTokens, o.Turns, o.Think, o.Seed = 16, 3000, 80, 48, 3, 400*time.Millisecond, 1
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case f.NArg() > 0:
		return nil, fmt.Errorf("%q is not a flag", f.Arg(0))
	case o.listen != "" && (o.endpoints == "") == (o.dns == ""):
		return nil, errors.New("-listen needs -endpoints or -dns")
	case o.pairs < 0:
		return nil, errors.New("-pairs is not below 0")
	case o.Duration <= 0 || o.Rate <= 0 || o.servers < 1 || o.servers > 64:
		return nil, errors.New("-duration, -rate and -servers are above 0, -servers at most 64")
	}
	if o.dns != "" {
		_, port, err := net.SplitHostPort(o.dns)
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		if err != nil {
			return nil, fmt.Errorf("-dns: %w", err)
		}
	}
	_, err := all.ByName(o.policy)
	return o, err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the command without its process. It returns the exit status: 2 for invalid
// arguments, 1 for failures.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "epp: %v\n", err)
		return 2
	}
	if o.listen != "" {
		err = serve(ctx, o, stderr, nil)
	} else {
		err = compare(ctx, o, stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "epp: %v\n", err)
		return 1
	}
	return 0
}
