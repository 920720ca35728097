package main

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/endpick/endpick"
)

// permanent is the number of servers, at the end, that are never removed.
const permanent = 4

// fleet is all servers.
type fleet struct {
	servers []*server
	mu      sync.RWMutex // locked while addresses change, or to keep them from changing
}

func (f *fleet) endpoints() (all []endpick.Endpoint) {
	for _, e := range f.servers {
		all = append(all, e.endpoint())
	}
	return all
}

// churn removes servers from a router and adds them again, in every way there is,
// until ctx is done, and leaves it with all of them.
func (f *fleet) churn(ctx context.Context, w *way, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 3))
	var errs []error
	check := func(err error, ok ...error) {
		for _, one := range ok {
			if errors.Is(err, one) {
				return
			}
		}
		if err != nil && len(errs) < 10 {
			errs = append(errs, err)
		}
	}
	for n := 0; ctx.Err() == nil; n++ {
		f.mu.RLock() // keeps addresses from changing
		all := f.endpoints()
		e := all[r.IntN(len(all)-permanent)]
		switch r.IntN(8) {
		case 0, 1:
			check(w.router.Remove(e.ID), endpick.ErrUnknownEndpoint)
		case 2, 3:
			check(w.router.Add(e), endpick.ErrDuplicateEndpoint)
		case 4:
			some := append([]endpick.Endpoint(nil), all[r.IntN(len(all)-permanent+1):]...)
			r.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
			check(w.router.SetEndpoints(some))
		case 5:
			check(w.router.Drain(e.ID), endpick.ErrUnknownEndpoint)
		case 6:
			check(w.router.Resume(e.ID), endpick.ErrUnknownEndpoint)
		case 7:
			load := endpick.Load{Waiting: float64(r.IntN(5)), Running: float64(r.IntN(20)), KVUsage: r.Float64(), Snapshot: w.router.Snapshot(e.ID)}
			if r.IntN(10) == 0 {
				load.Waiting, load.KVUsage = math.NaN(), -3
			}
			if err := w.router.Report(e.ID, load); !errors.As(err, new(*endpick.LoadError)) {
				check(err, endpick.ErrUnknownEndpoint)
			}
		}
		if n%200 == 0 {
			check(w.router.SetPolicy(w.policies[n/200%len(w.policies)]))
		}
		f.mu.RUnlock()
		sleep(ctx, 5*time.Millisecond)
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	all := f.endpoints()
	check(w.router.SetEndpoints(all))
	for _, e := range all {
		check(w.router.Resume(e.ID))
	}
	return errors.Join(errs...)
}

// kill kills servers, one at a time, and restarts them at other addresses.
func (f *fleet) kill(ctx context.Context, ways []*way, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 4))
	for ctx.Err() == nil {
		sleep(ctx, time.Duration(500+r.IntN(2500))*time.Millisecond)
		e := f.servers[r.IntN(len(f.servers)-permanent)]
		if err := e.kill(); err != nil {
			return err
		}
		sleep(ctx, time.Duration(r.IntN(400))*time.Millisecond)
		if err := f.restart(e, ways); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) restart(e *server, ways []*way) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := e.start(); err != nil {
		return err
	}
	for _, w := range ways {
		if err := w.router.Update(e.endpoint()); err != nil && !errors.Is(err, endpick.ErrUnknownEndpoint) {
			return err
		}
	}
	e.known()
	return nil
}
