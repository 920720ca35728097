// Live runs real servers in one process, in one of two ways; examples/simulate builds it and
// has the same verbs.
//
//	simulate ways              a table of what differs on the wire, in half a minute
//	simulate ways -v           each difference as well
//	simulate ways -run abort   scenarios with this in their names
//
// plays a list of exchanges with model servers, from a chat to an upgrade, directly and through
// httputil.ReverseProxy and Caddy. It fails if a difference is not documented, or an exchange leaves
// a lease or a goroutine behind.
//
//	simulate soak                a minute, after ten million leases in the process
//	simulate soak -duration 8m
//
// sends real HTTP as fast as the machine allows through both, a gateway on a transport.Dispatcher,
// and an Envoy with an endpoint picker, if ENDPICK_ENVOY names one. Servers fail, are killed and
// come back, clients leave or are malicious, endpoints and policies come and go, and thousands of
// streams run slowly. It prints what became of the requests, and how much memory and how many
// goroutines are left. It fails if a promise is
// broken: a request is lost although not each of its attempts has failed, a response is incomplete
// although no server broke it off, a lease is open, a count is not zero, memory has grown by more
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
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// verb has been parsed from its flags.
type verb interface {
	// check returns what is wrong with the flags.
	check() error
	run(ctx context.Context, stdout, stderr io.Writer) error
}

// command is the program without its process. It returns the exit status: 2 for invalid arguments, 1
// for failures.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	name := ""
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	take, ok := map[string]func(*flag.FlagSet) verb{"ways": waysFlags, "soak": soakFlags}[name]
	if !ok {
		fmt.Fprintln(stderr, "live: want ways or soak")
		return 2
	}
	do := take(flags)
	status, err := 2, flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("%q is not a flag", flags.Arg(0))
	case err == nil:
		if err = do.check(); err == nil {
			status, err = 1, do.run(ctx, stdout, stderr)
		}
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return status
	}
	return 0
}
