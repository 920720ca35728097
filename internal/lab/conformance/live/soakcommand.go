package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"runtime/pprof"
	"time"
)

// soakOptions are the flags of soak.
type soakOptions struct {
	duration time.Duration
	leases   int
	streams  int
	clients  int
	servers  int
	seed     uint64
	pace     time.Duration
}

func soakFlags(f *flag.FlagSet) verb {
	o := &soakOptions{}
	f.DurationVar(&o.duration, "duration", time.Minute, "how long requests are sent, a quarter or a minute of it to warm up")
	f.IntVar(&o.leases, "leases", 10_000_000, "leases in the process, before")
	f.IntVar(&o.streams, "streams", 2000, "streams at a time that take their time, on all ways together")
	f.IntVar(&o.clients, "clients", 6, "clients of each way that ask again at once")
	f.IntVar(&o.servers, "servers", 8, "servers, four of which are never killed nor taken away")
	f.Uint64Var(&o.seed, "seed", 1, "of all chance")
	f.DurationVar(&o.pace, "pace", time.Second, "between the events of the streams that take their time")
	return o
}

func (o *soakOptions) check() error {
	switch {
	case o.duration <= 0 || o.pace <= 0 || o.pace > patience/tokens:
		return fmt.Errorf("-duration and -pace are above 0, -pace at most %v", patience/tokens)
	case o.leases < 0 || o.streams < 0 || o.clients < 1 || o.servers <= permanent || o.servers > 64:
		return errors.New("an argument is out of range")
	}
	return nil
}

func (o *soakOptions) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	r := &report{leases: o.leases}
	if r.leasesTook, err = leases(o.leases, o.seed); err != nil {
		r.broken(fmt.Errorf("leases in the process: %w", err))
	}
	if err := o.soak(ctx, r, stderr); err != nil {
		r.broken(err)
	}
	r.write(stdout)
	return errors.Join(r.errs...)
}

func (o *soakOptions) soak(ctx context.Context, r *report, progress io.Writer) (err error) {
	w, err := newSetup(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	warmUp := min(o.duration/4, time.Minute)
	fmt.Fprintf(progress, "warming up for %v\n", warmUp)
	if err := w.play(ctx, warmUp); err != nil {
		return err
	}
	if r.before, err = w.rest(math.MaxInt); err != nil {
		return err
	}
	fmt.Fprintf(progress, "soaking for %v\n", o.duration-warmUp)
	began := time.Now()
	if err := w.play(ctx, o.duration-warmUp); err != nil {
		return err
	}
	r.took = warmUp + time.Since(began)
	if r.after, err = w.rest(r.before.goroutines); err != nil {
		return err
	}
	if r.after.goroutines > r.before.goroutines {
		_ = pprof.Lookup("goroutine").WriteTo(progress, 1)
	}
	r.examine(w)
	return nil
}
