// Command overhead measures what endpick costs a gateway on top of plain proxying.
//
//	overhead [-only chunks,bodies,hostile,streams] [-rounds 5] …
//
// starts an engine that computes nothing, and in front of it two proxies in processes
// of their own: a plain httputil.ReverseProxy, and the same one with a
// transport.Transport with its router, index and policy. It sends both the same
// requests, in turns, and prints the CPU time of each process. It takes the minimum of
// the rounds, because other programs only ever add to it:
//
//	chunks   of a chat stream, arriving singly or in groups
//	bodies   chats by their length, hashed and routed by their prefix
//	hostile  without the plain proxy: bodies made to be expensive, as a multiple of a
//	         chat of that length with one long text
//	streams  many at a time, with a set number of events per second: how late they
//	         arrive, also directly from the engine
//
// Ratios of one run can be compared between machines; times can't. For -only hostile,
// -search is the number of random shapes to search for the worst, and -seed selects
// them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

type options struct {
	only   string
	rounds int
	work   int
	search int
	worst  int
	most   int
	seed   uint64

	streams, rate int
	duration      time.Duration
	beside        bool

	record         bool
	proxy, backend string // of a process that is a proxy
}

var parts = []string{"chunks", "bodies", "hostile", "streams"}

func (o *options) asks(part string) bool { return slices.Contains(strings.Split(o.only, ","), part) }

func parseOptions(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("overhead", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.only, "only", strings.Join(parts, ","), "what is measured")
	f.IntVar(&o.rounds, "rounds", 5, "how often each is measured; the least counts")
	f.IntVar(&o.work, "work", 100, "how long a round is: 100 is some seconds for each row of chunks and bodies")
	f.IntVar(&o.search, "search", 2000, "shapes of chance among which the worst bodies are looked for")
	f.IntVar(&o.worst, "worst", 12, "how many of all hostile shapes are sent as requests, for each length; 0: all that are known by name")
	f.IntVar(&o.most, "most", 31744, "the length of the longest body, in KiB")
	f.Uint64Var(&o.seed, "seed", 1, "of the search")
	f.IntVar(&o.streams, "streams", 2000, "how many at a time")
	f.IntVar(&o.rate, "rate", 50, "events a second of each stream")
	f.DurationVar(&o.duration, "duration", 5*time.Second, "of the streams of a round")
	f.BoolVar(&o.beside, "beside", false, "the streams of both proxies at the same time, half of them each")
	f.BoolVar(&o.record, "record", false, "endpick records what prompts are made of")
	f.StringVar(&o.proxy, "proxy", "", "be a proxy of this kind, plain or endpick, before -backend, until the standard input ends")
	f.StringVar(&o.backend, "backend", "", "of -proxy")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	for part := range strings.SplitSeq(o.only, ",") {
		if !slices.Contains(parts, part) {
			return nil, fmt.Errorf("-only %q is none of %s", part, strings.Join(parts, ", "))
		}
	}
	if f.NArg() > 0 || o.rounds < 1 || o.work < 1 || o.search < 0 || o.worst < 0 || o.streams < 1 || o.rate < 1 || o.duration <= 0 {
		return nil, errors.New("an argument is out of range")
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parseOptions(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "overhead: %v\n", err)
		return 2
	}
	if o.proxy != "" {
		err = serveProxy(o, os.Stdin, stdout)
	} else {
		err = measure(ctx, o, stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "overhead: %v\n", err)
		return 1
	}
	return 0
}

// measure does what the options say.
func measure(ctx context.Context, o *options, stdout io.Writer) error {
	b, err := newBench(ctx, o.record)
	if err != nil {
		return err
	}
	defer b.close()
	for _, part := range []struct {
		name string
		run  func(*bench, *options, io.Writer) error
	}{{"chunks", chunks}, {"bodies", bodies}, {"hostile", hostileBodies}, {"streams", streams}} {
		if !o.asks(part.name) {
			continue
		}
		if err := part.run(b, o, stdout); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return ctx.Err()
}
