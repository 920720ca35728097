package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset/all"
)

// leases opens and closes n leases in the process, from several goroutines,
// while endpoints come and go, and checks the counts.
func leases(n int, seed uint64) (time.Duration, error) {
	config := all.LMetric()
	for i := range 8 {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: fmt.Sprint("server-", i), Address: fmt.Sprintf("10.0.0.%d:80", i)})
	}
	router, err := endpick.New(config)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	var next, closed atomic.Int64
	var wg, churning sync.WaitGroup
	stop := make(chan struct{})
	churning.Go(func() {
		r := rand.New(rand.NewPCG(seed, 5))
		for {
			select {
			case <-stop:
				return
			default:
			}
			i := r.IntN(6)
			if router.Remove(config.Endpoints[i].ID) != nil {
				_ = router.Add(config.Endpoints[i])
			}
			time.Sleep(100 * time.Microsecond)
		}
	})
	failures := make(chan error, 1)
	fail := func(err error) {
		select {
		case failures <- err:
		default:
		}
	}
	for w := range 2 * runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			blocks := make([]uint64, 4)
			var held []endpick.Lease
			for next.Add(1) <= int64(n) {
				for i := range blocks {
					blocks[i] = uint64(w)<<32 | uint64(r.IntN(64)*8+i)
				}
				lease, err := router.Route(endpick.Request{InputTokens: 70, Blocks: blocks, Stream: true})
				if err != nil {
					fail(err)
					return
				}
				if held = append(held, lease); len(held) < 32 {
					continue
				}
				i := r.IntN(len(held))
				finishLease(r, held[i])
				closed.Add(1)
				held[i] = held[len(held)-1]
				held = held[:len(held)-1]
			}
			for _, l := range held {
				finishLease(r, l)
				closed.Add(1)
			}
		})
	}
	wg.Wait()
	close(stop)
	churning.Wait()
	took := time.Since(began)
	select {
	case err := <-failures:
		return took, err
	default:
	}
	if closed.Load() != int64(n) {
		return took, fmt.Errorf("%d leases of %d were closed", closed.Load(), n)
	}
	return took, account(router)
}

// finishLease ends a lease in one of the possible ways, more than once.
func finishLease(r *rand.Rand, l endpick.Lease) {
	k := r.IntN(8)
	if k < 6 {
		l.FirstToken()
		l.Tokens(10)
	}
	l.Done(endpick.Outcome{Status: endpick.Status(max(k-5, 0)), OutputTokens: 10})
	if k == 0 {
		l.Tokens(1)
		l.Done(endpick.Outcome{Status: endpick.Failed})
	}
}

// account returns what is wrong with an idle router.
func account(router *endpick.Router) error {
	var errs []error
	s := router.Stats()
	if s.OpenLeases != 0 || s.Routed != s.Closed || s.Departing != 0 {
		errs = append(errs, fmt.Errorf("%d leases were opened and %d closed, %d are open, %d endpoints have not gone", s.Routed, s.Closed, s.OpenLeases, s.Departing))
	}
	if s.Reaped != 0 || s.Panics != 0 || s.BadStage != 0 {
		errs = append(errs, fmt.Errorf("%d leases were closed by time, %d stages have panicked, %d results were bad", s.Reaped, s.Panics, s.BadStage))
	}
	for _, e := range router.Endpoints() {
		if e.Candidate.InFlight != (endpick.InFlight{}) {
			errs = append(errs, fmt.Errorf("%+v is in flight at %s", e.Candidate.InFlight, e.Candidate.Endpoint.ID))
		}
	}
	return errors.Join(errs...)
}
