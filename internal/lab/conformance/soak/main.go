// Soak sends real HTTP as fast as the machine allows through everything that contains
// endpick, in one process: httputil.ReverseProxy with the transport, Caddy, a proxy that
// asks the endpoint picker, and a gateway on a transport.Dispatcher. Servers fail, are killed and
// come back, clients leave or are malicious, endpoints and policies come and go, and
// thousands of streams run slowly.
//
//	simulate soak                a minute, after ten million leases in the process
//	simulate soak -duration 8m
//
// It prints what became of the requests, how long decisions took, and how much memory and
// how many goroutines are left. It exits with 1 if a promise is broken: a request is lost
// although not each of its attempts has failed, a response is incomplete although no
// server broke it off, a lease is open, a count is not zero, memory has grown by more
// than a tenth, or there is one goroutine more than before.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"
)

type options struct {
	duration time.Duration
	leases   int
	streams  int
	clients  int
	servers  int
	seed     uint64
	pace     time.Duration
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("soak", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.DurationVar(&o.duration, "duration", time.Minute, "how long requests are sent, a quarter or a minute of it to warm up")
	f.IntVar(&o.leases, "leases", 10_000_000, "leases in the process, before")
	f.IntVar(&o.streams, "streams", 2000, "streams at a time that take their time, on all ways together")
	f.IntVar(&o.clients, "clients", 6, "clients of each way that ask again at once")
	f.IntVar(&o.servers, "servers", 8, "servers, four of which are never killed nor taken away")
	f.Uint64Var(&o.seed, "seed", 1, "of all chance")
	f.DurationVar(&o.pace, "pace", time.Second, "between the events of the streams that take their time")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case f.NArg() > 0:
		return nil, fmt.Errorf("%q is not a flag", f.Arg(0))
	case o.duration <= 0 || o.pace <= 0 || o.pace > patience/tokens:
		return nil, fmt.Errorf("-duration and -pace are above 0, -pace at most %v", patience/tokens)
	case o.leases < 0 || o.streams < 0 || o.clients < 1 || o.servers <= permanent || o.servers > 64:
		return nil, errors.New("an argument is out of range")
	}
	return o, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the command without its process.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "soak:", err)
		return 2
	}
	r := &report{leases: o.leases}
	if r.leasesTook, err = leases(o.leases, o.seed); err != nil {
		r.broken(fmt.Errorf("leases in the process: %w", err))
	}
	if err := soak(ctx, o, r, stderr); err != nil {
		r.broken(err)
	}
	r.write(stdout)
	if len(r.errs) > 0 {
		fmt.Fprintln(stderr, "soak:", errors.Join(r.errs...))
		return 1
	}
	return 0
}
