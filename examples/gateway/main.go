// Command gateway shows endpick at work behind an httputil.ReverseProxy.
//
//	gateway [-duration 20s] [-policies round-robin,least-loaded,lmetric] [-format table|json] …
//
// starts model servers and the gateway before them, all over real HTTP on
// loopback, sends the same conversations through under each policy, and prints
// what a client measured.
//
//	gateway -listen ADDR [-backend URL]… [-policy NAME] [-grace 30s]
//
// is a gateway that serves until it is interrupted, with /readyz and a page of
// its decisions at /debug/endpick. Without -backend it starts model servers of
// its own.
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
// arguments that make no sense, 1 if something failed.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parseOptions(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "gateway: %v\n", err)
		return 2
	}
	if o.listen != "" {
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
