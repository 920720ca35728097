package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
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
	var workers, churning sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	churning.Go(func() {
		for r := rand.New(rand.NewPCG(seed, 5)); ctx.Err() == nil; time.Sleep(100 * time.Microsecond) {
			i := r.IntN(6)
			if router.Remove(config.Endpoints[i].ID) != nil {
				_ = router.Add(config.Endpoints[i])
			}
		}
	})
	failures := make([]error, 2*runtime.GOMAXPROCS(0))
	var next atomic.Int64
	for w := range failures {
		workers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			blocks := make([]uint64, 4)
			var open []endpick.Lease
			for next.Add(1) <= int64(n) && failures[w] == nil {
				for i := range blocks {
					blocks[i] = uint64(w)<<32 | uint64(r.IntN(64)*8+i)
				}
				var lease endpick.Lease
				lease, failures[w] = router.Route(endpick.Request{InputTokens: 70, Blocks: blocks, Stream: true})
				if open = append(open, lease); len(open) == 32 {
					i := r.IntN(len(open))
					finishLease(r, open[i])
					open = slices.Delete(open, i, i+1)
				}
			}
			for _, l := range open {
				finishLease(r, l)
			}
		})
	}
	workers.Wait()
	stop()
	churning.Wait()
	took := time.Since(began)
	if s := router.Stats(); s.Closed != uint64(n) {
		failures = append(failures, fmt.Errorf("%d leases of %d were closed", s.Closed, n))
	}
	return took, errors.Join(append(failures, account(router))...)
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
	if s.OpenLeases != 0 || s.Routed != s.Closed || s.RemovedOpen != 0 {
		errs = append(errs, fmt.Errorf("%d leases were opened and %d closed, %d are open, %d endpoints have not gone", s.Routed, s.Closed, s.OpenLeases, s.RemovedOpen))
	}
	if s.Reaped != 0 || s.Panics != 0 || s.StageErrors != 0 {
		errs = append(errs, fmt.Errorf("%d leases were closed by time, %d stages have panicked, %d results were bad", s.Reaped, s.Panics, s.StageErrors))
	}
	for _, e := range router.Endpoints() {
		if e.Candidate.InFlight != (endpick.InFlight{}) {
			errs = append(errs, fmt.Errorf("%+v is in flight at %s", e.Candidate.InFlight, e.Candidate.Endpoint.ID))
		}
	}
	return errors.Join(errs...)
}
