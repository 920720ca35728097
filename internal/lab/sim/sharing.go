package sim

import (
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

// notice is a message of a router to the others.
type notice struct {
	due     time.Duration
	kind    noticeKind
	from    int // the sender
	shadow  *shadow
	request endpick.Request
	outcome endpick.Outcome
}

type noticeKind uint8

const (
	noticeRouted noticeKind = iota
	noticeFirst
	noticeDone
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
		mirror.Adopted.ExpectedCached = c.PrefixTokens
	}
	f.shadow.adopted = mirror.Adopted
	if r.cfg.Sharing.LoadOnly {
		mirror.Blocks = nil
	}
	r.tell(notice{kind: noticeRouted, from: f.router, shadow: f.shadow, request: mirror})
}

// tellFirst tells the others of a flight's first token.
func (r *run) tellFirst(f *flight) {
	if f.shadow != nil {
		r.tell(notice{kind: noticeFirst, from: f.router, shadow: f.shadow})
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
	}
	r.tell(notice{kind: noticeDone, from: f.router, shadow: s, outcome: o})
}

func (r *run) tell(t notice) {
	t.due = r.now + r.cfg.Sharing.Delay
	if r.cfg.Sharing.Delay == 0 {
		r.mirror(&t)
		return
	}
	r.notices = append(r.notices, t)
	r.timers.set(onNotice, r.notices[0].due, true)
}

// hear handles the messages that have arrived.
func (r *run) hear() {
	n := 0
	for ; n < len(r.notices) && r.notices[n].due <= r.now; n++ {
		r.mirror(&r.notices[n])
		r.notices[n] = notice{}
	}
	r.notices = r.notices[n:]
	if len(r.notices) > 0 {
		r.timers.set(onNotice, r.notices[0].due, true)
	} else {
		r.timers.set(onNotice, 0, false)
	}
}

// mirror applies a message at every other router.
func (r *run) mirror(t *notice) {
	for i, router := range r.routers {
		if i == t.from {
			continue
		}
		switch t.kind {
		case noticeRouted:
			// It fails for a server that has just been removed.
			t.shadow.leases[i], _ = router.Route(t.request)
		case noticeFirst:
			t.shadow.leases[i].FirstToken()
		case noticeDone:
			t.shadow.leases[i].Done(t.outcome)
		}
	}
}
