package slo

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
)

// running knows the TPOT targets of the requests that run on each endpoint, as
// an ordered multiset for each. A target is in it from Routed to Done.
//
// The multiset is a sorted slice of the distinct targets: there are as many as
// service classes, rarely more than a handful.
type running struct {
	// held counts the targets of all endpoints; zero spares the lock.
	held atomic.Int64

	mu        sync.RWMutex
	endpoints []endpointTargets // by endpoint slot
	leases    []leaseTarget     // by lease slot
}

type endpointTargets struct {
	generation uint32
	targets    []countedTarget // ascending
}

type countedTarget struct {
	target time.Duration
	count  int
}

// leaseTarget is what one open lease has put in.
type leaseTarget struct {
	generation uint32 // of the lease; newer than any that was taken out
	ref        endpick.Ref
	target     time.Duration // 0: nothing is held
}

// strictest returns the lowest TPOT target on the endpoint in nanoseconds, 0
// if there is none; r.mu is held.
func (r *running) strictest(ref endpick.Ref) float64 {
	if int(ref.Slot) >= len(r.endpoints) {
		return 0
	}
	e := &r.endpoints[ref.Slot]
	if e.generation != ref.Generation || len(e.targets) == 0 {
		return 0
	}
	return float64(e.targets[0].target)
}

// Routed implements [endpick.RoutedObserver].
func (r *running) Routed(e *endpick.Event) {
	// The TPOT of a response that is not streamed can't be seen.
	target := e.Request.SLO.TPOT
	if target <= 0 || !e.Request.Stream {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for int(e.Lease.Slot) >= len(r.leases) {
		r.leases = append(r.leases, leaseTarget{})
	}
	l := &r.leases[e.Lease.Slot]
	if l.generation == e.Lease.Generation {
		return // another stage has passed this event on
	}
	*l = leaseTarget{generation: e.Lease.Generation, ref: e.Candidate.Ref, target: target}
	r.add(l.ref, target)
}

// Done implements [endpick.DoneObserver].
func (r *running) Done(e *endpick.Event, _ *endpick.Outcome) {
	if r.held.Load() == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if int(e.Lease.Slot) >= len(r.leases) {
		return
	}
	l := &r.leases[e.Lease.Slot]
	if l.generation == e.Lease.Generation && l.target > 0 {
		r.remove(l.ref, l.target)
		l.target = 0
	}
}

func (r *running) add(ref endpick.Ref, target time.Duration) {
	for int(ref.Slot) >= len(r.endpoints) {
		r.endpoints = append(r.endpoints, endpointTargets{})
	}
	e := &r.endpoints[ref.Slot]
	if e.generation < ref.Generation {
		for _, t := range e.targets {
			r.held.Add(-int64(t.count))
		}
		e.generation, e.targets = ref.Generation, e.targets[:0]
	}
	if e.generation != ref.Generation {
		return // the endpoint's place has been taken
	}
	r.held.Add(1)
	i, found := e.find(target)
	if !found {
		e.targets = slices.Insert(e.targets, i, countedTarget{target: target})
	}
	e.targets[i].count++
}

func (r *running) remove(ref endpick.Ref, target time.Duration) {
	e := &r.endpoints[ref.Slot]
	i, found := e.find(target)
	if e.generation != ref.Generation || !found {
		return
	}
	r.held.Add(-1)
	if e.targets[i].count--; e.targets[i].count == 0 {
		e.targets = slices.Delete(e.targets, i, i+1)
	}
}

func (e *endpointTargets) find(target time.Duration) (int, bool) {
	return slices.BinarySearchFunc(e.targets, target, func(t countedTarget, target time.Duration) int {
		return cmp.Compare(t.target, target)
	})
}
