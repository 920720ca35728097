package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"runtime"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick/internal/lab/rig"
)

// setup is everything that takes part.
type setup struct {
	o      *soakOptions
	book   *book
	fleet  fleet
	did    [faults]atomic.Int64
	direct *way
	ways   []*way
	number atomic.Uint64
	plays  uint64
}

func newSetup(o *soakOptions) (w *setup, err error) {
	w = &setup{o: o, book: new(book)}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.stop())
		}
	}()
	for i := range o.servers {
		e := &server{id: fmt.Sprint("server-", i), book: w.book, seed: o.seed + uint64(i), did: &w.did, idle: map[net.Conn]bool{}}
		if err := e.start(); err != nil {
			return w, err
		}
		w.fleet.servers = append(w.fleet.servers, e)
	}
	w.direct = directly(w.fleet.servers)
	w.ways, err = openWays(w.book, w.fleet.endpoints())
	return w, err
}

func (w *setup) stop() error {
	var errs []error
	for _, one := range w.ways {
		one.client.CloseIdleConnections()
		errs = append(errs, one.stop())
	}
	if w.direct != nil {
		w.direct.client.CloseIdleConnections()
	}
	for _, e := range w.fleet.servers {
		errs = append(errs, e.kill())
	}
	return errors.Join(errs...)
}

// play sends requests on all ways for so long, and waits until all have ended.
func (w *setup) play(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	run := func(f func() error) {
		wg.Go(func() {
			if err := f(); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	w.plays++ // so that chance differs
	servers := map[string]*server{}
	for _, e := range w.fleet.servers {
		servers[e.id] = e
	}
	of := func(one *way) *clients {
		return &clients{way: one, book: w.book, servers: servers, number: &w.number, seed: w.o.seed + w.plays<<32, pace: w.o.pace}
	}
	for _, one := range w.ways {
		c := of(one)
		for n := range w.o.clients {
			run(func() error { c.work(ctx, n, false); return nil })
		}
		for n := range (w.o.streams + len(w.ways) - 1) / len(w.ways) {
			run(func() error { c.work(ctx, 1000+n, true); return nil })
		}
		run(func() error { return w.fleet.churn(ctx, one, w.o.seed+w.plays) })
	}
	run(func() error { of(w.direct).work(ctx, 0, false); return nil })
	run(func() error { return w.fleet.kill(ctx, w.ways, w.o.seed+w.plays) })
	wg.Wait()
	return errors.Join(errs...)
}

// rest waits until nothing is open any more, and returns what the process holds then.
// It gives goroutines beyond that number time to end.
func (w *setup) rest(goroutines int) (held, error) {
	open := 0
	if !within(patience, func() bool {
		open = 0
		for _, one := range w.ways {
			open += one.router.Stats().OpenLeases
		}
		return open == 0
	}) {
		return held{}, fmt.Errorf("%d leases are open %v after the last request has ended", open, patience)
	}
	return settled(goroutines, func() {
		for _, one := range append(w.ways[:len(w.ways):len(w.ways)], w.direct) {
			one.client.CloseIdleConnections()
		}
		for _, e := range w.fleet.servers {
			e.rest()
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	}), nil
}

// held is what the process holds.
type held struct {
	heap       int64
	goroutines int
}

// settled waits until the number of goroutines has been stable for a while, and not above
// the given one, because goroutines take a moment to end. Meanwhile it closes idle
// connections repeatedly: one that was dialed for a request that another connection has
// served becomes idle when it is established.
func settled(goroutines int, closeIdle func()) held {
	closeIdle()
	n, since := runtime.NumGoroutine(), time.Now()
	for begun := since; (n > goroutines || time.Since(since) < time.Second) && time.Since(begun) < patience; time.Sleep(10 * time.Millisecond) {
		closeIdle()
		if now := runtime.NumGoroutine(); now != n {
			n, since = now, time.Now()
		}
	}
	return held{rig.Heap(), runtime.NumGoroutine()}
}

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
