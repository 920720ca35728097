package slo

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
)

// running has the TPOT targets of the requests that run on each endpoint. A
// target is in it from Routed to Done.
type running struct {
	endpick.Exclusive
	disabled bool
	// held is the number of leases with a target here; zero avoids the lock.
	held atomic.Int64

	mu        sync.RWMutex
	endpoints endpick.PerEndpoint[targets]
	leases    endpick.PerLease[leaseTarget]
}

// leaseTarget is the target of an open lease.
type leaseTarget struct {
	ref    endpick.EndpointRef
	target time.Duration
}

// Routed implements [endpick.RoutedObserver].
func (r *running) Routed(e *endpick.Event) {
	// The TPOT of a response that does not stream can't be measured.
	target := e.Request.SLO.TPOT
	if target <= 0 || !e.Request.Stream || r.disabled {
		return
	}
	p := clean(&e.Candidate.Prediction, false)
	if p.has&endpick.TPOT == 0 || p.tpot > float64(target) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	on := r.endpoints.At(e.Candidate.Ref)
	if on == nil {
		return // its slot has been reused
	}
	lease := r.leases.At(e.Lease)
	if lease == nil {
		return
	}
	*lease = leaseTarget{ref: e.Candidate.Ref, target: target}
	on.add(target)
	r.held.Add(1)
}

// Done implements [endpick.DoneObserver].
func (r *running) Done(e *endpick.Event, _ *endpick.Outcome) {
	if r.held.Load() == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	lease := r.leases.Find(e.Lease)
	if lease == nil {
		return
	}
	if on := r.endpoints.Find(lease.ref); on != nil {
		on.remove(lease.target)
	}
	r.leases.Drop(e.Lease)
	r.held.Add(-1)
}

// strictest returns the lowest target on the endpoint in nanoseconds, or 0;
// r.mu is held.
func (r *running) strictest(ref endpick.EndpointRef) float64 {
	on := r.endpoints.Find(ref)
	if on == nil || len(*on) == 0 {
		return 0
	}
	return float64((*on)[0].target)
}

// targets is a multiset: a sorted slice of the distinct values. There is one
// per service class, rarely more than a handful.
type targets []countedTarget

type countedTarget struct {
	target time.Duration
	count  int
}

func (t *targets) add(target time.Duration) {
	i, found := t.find(target)
	if !found {
		*t = slices.Insert(*t, i, countedTarget{target: target})
	}
	(*t)[i].count++
}

func (t *targets) remove(target time.Duration) {
	i, found := t.find(target)
	if !found {
		return
	}
	if (*t)[i].count--; (*t)[i].count == 0 {
		*t = slices.Delete(*t, i, i+1)
	}
}

func (t *targets) find(target time.Duration) (int, bool) {
	return slices.BinarySearchFunc(*t, target, func(t countedTarget, target time.Duration) int {
		return cmp.Compare(t.target, target)
	})
}
