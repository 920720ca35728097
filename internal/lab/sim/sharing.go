package sim

import (
	"slices"
	"time"

	"github.com/endpick/endpick"
)

// Sharing is what routers tell each other about their requests, like replicas on a bus
// (package transport/replica): each mirrors the requests of the others. Nothing is lost.
type Sharing struct {
	// Delay is how long messages take.
	Delay time.Duration
	// LoadOnly does not share blocks.
	LoadOnly bool
}

// shadow has the mirrors of a flight, by router; that of its own router is the zero Lease.
type shadow struct {
	leases  []endpick.Lease
	routed  time.Duration // when it was routed
	adopted *endpick.Adopted
}

// told is a message of a router to the others.
type told struct {
	due     time.Duration
	kind    toldKind
	from    int // the sender
	shadow  *shadow
	request endpick.Request
	outcome endpick.Outcome
}

type toldKind uint8

const (
	toldRouted toldKind = iota
	toldFirst
	toldDone
)

// tellRouted tells the others where a flight has been sent.
func (r *run) tellRouted(f *flight, req *endpick.Request) {
	if r.cfg.Sharing == nil || len(r.routers) == 1 {
		return
	}
	f.shadow = &shadow{leases: make([]endpick.Lease, len(r.routers)), routed: r.now}
	mirror := *req
	mirror.Exclude, mirror.Receipt = nil, nil
	mirror.Adopted = &endpick.Adopted{Endpoint: f.lease.Endpoint().ID, Mirrored: true}
	if c, ok := f.lease.Candidate(); ok {
		mirror.Adopted.ExpectedCached = c.CachedTokens()
	}
	f.shadow.adopted = mirror.Adopted
	if r.cfg.Sharing.LoadOnly {
		mirror.Blocks = nil
	} else {
		mirror.Blocks = slices.Clone(mirror.Blocks)
	}
	r.tell(told{kind: toldRouted, from: f.router, shadow: f.shadow, request: mirror})
}

// tellFirst tells the others of a flight's first token.
func (r *run) tellFirst(f *flight) {
	if f.shadow != nil {
		r.tell(told{kind: toldFirst, from: f.router, shadow: f.shadow})
	}
}

// tellDone tells the others how an attempt has ended.
func (r *run) tellDone(f *flight, o endpick.Outcome) {
	s := f.shadow
	if s == nil {
		return
	}
	f.shadow = nil
	s.adopted.Took = max(r.now-s.routed, 1)
	if f.started {
		s.adopted.TTFT = max(f.first-s.routed, 1)
	}
	if r.cfg.Sharing.LoadOnly {
		o.Blocks = nil
	} else {
		o.Blocks = slices.Clone(o.Blocks)
	}
	r.tell(told{kind: toldDone, from: f.router, shadow: s, outcome: o})
}

func (r *run) tell(t told) {
	t.due = r.now + r.cfg.Sharing.Delay
	if r.cfg.Sharing.Delay == 0 {
		r.mirror(&t)
		return
	}
	r.told = append(r.told, t)
	r.timers.set(onTold, r.told[0].due, true)
}

// hear handles the messages that have arrived.
func (r *run) hear() {
	n := 0
	for ; n < len(r.told) && r.told[n].due <= r.now; n++ {
		r.mirror(&r.told[n])
		r.told[n] = told{}
	}
	r.told = r.told[n:]
	if len(r.told) > 0 {
		r.timers.set(onTold, r.told[0].due, true)
	} else {
		r.timers.set(onTold, 0, false)
	}
	if r.gates != nil {
		r.release()
	}
}

// mirror applies a message at every other router.
func (r *run) mirror(t *told) {
	for i, router := range r.routers {
		if i == t.from {
			continue
		}
		switch t.kind {
		case toldRouted:
			// It fails for a server that has just been removed.
			t.shadow.leases[i], _ = router.Route(t.request)
		case toldFirst:
			t.shadow.leases[i].FirstToken()
		case toldDone:
			t.shadow.leases[i].Done(t.outcome)
		}
	}
}
