package protocol

import (
	"slices"
	"time"
)

// state is a parsed snapshot.
type state struct {
	peer  // of these, next, endpoints and classes
	holds []past
	open  []opening
}

// past is what an endpoint holds since an earlier request.
type past struct {
	number uint64
	effect Effect
}

// opening is a request in flight.
type opening struct {
	lease  *Lease
	blocks []uint64
	known  bool
}

// readState parses a snapshot; false if it is invalid.
func (n *Node) readState(b []byte) (s *state, ok bool) {
	r := &reader{b: b}
	s = &state{}
	s.next = r.within(1 << 62) // it will not start over
	last, any := uint64(0), false
	for r.more() {
		op := r.byte()
		switch op & kindMask {
		case opEndpoint, opClass:
			s.readName(r, op)
		case opHolds:
			if e, number, ok := n.readHeld(&s.peer, r, op); ok {
				s.holds = append(s.holds, past{number, e})
			}
		case opOpen:
			f := s.readFacts(r, op)
			number := r.uint()
			blocks, known := n.readChain(r, op)
			// Requests are in order.
			if r.bad = r.bad || number >= s.next || any && number <= last || len(s.open) >= maxOpen; !r.bad {
				s.open = append(s.open, opening{&Lease{facts: f, number: number, answered: op&hasFirstToken != 0, late: true}, blocks, known})
			}
			last, any = number, true
		default:
			r.bad = true
		}
	}
	return s, !r.bad
}

// load replaces what was known of a log by a snapshot.
func (n *Node) load(now time.Time, p *peer, b []byte) {
	s, ok := n.readState(b)
	if !ok {
		n.counts.Malformed++
		return
	}
	n.counts.Snapshots++
	stays := make(map[uint64]bool, len(s.open))
	for i := range s.open {
		stays[s.open[i].lease.number] = true
	}
	// What was reported before is known, except how the requests open here have ended.
	news := slices.DeleteFunc(s.holds, func(h past) bool {
		return h.number < p.next && p.open[h.number] == nil && !p.isWanted(h.number)
	})
	n.lose(p, func(l *Lease) bool { return !stays[l.number] })
	for i := range news {
		p.satisfied(news[i].number)
		n.effect(news[i].effect)
	}
	for i := range s.open {
		o := &s.open[i]
		l := p.open[o.lease.number]
		switch {
		case l == nil:
			n.mirror(now, p, o.lease, o.blocks, o.known)
		case o.lease.answered && !l.answered:
			l.answered = true
			n.effect(Effect{Kind: Answered, Lease: l})
		}
	}
	p.next, p.endpoints, p.classes = s.next, s.endpoints, s.classes
	p.live, p.applied, p.heardAt, p.wait = true, p.asOf, now, askEvery
	n.drain(now, p)
}
