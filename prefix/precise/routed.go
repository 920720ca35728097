package precise

import (
	"time"

	"github.com/endpick/endpick"
)

// routed is what was sent to engines so recently that their events can't have
// arrived: the blocks of a request count as held from when it is routed until Grace
// after its first token. If it ends before, they count no more.
type routed struct {
	x      *Index
	leases endpick.PerLease[lease]
	// Requests after their first token, in the order of time.
	grace  []waiting
	first  int               // the first of grace that has not expired
	counts map[uint64]uint32 // requests, by pair
	spare  [][]uint64        // unused slices of pairs
	most   int
}

// lease is a request before its first token.
type lease struct{ pairs []uint64 }

type waiting struct {
	until time.Time
	pairs []uint64
}

// pairOf is a pair of a block and a feed that is expected to report it.
func pairOf(id, feed uint32) uint64 { return uint64(id)<<32 | uint64(feed) }

func (r *routed) init(x *Index) {
	r.x = x
	r.counts = map[uint64]uint32{}
	r.most = int(x.config.MaxBytes / 8 / (pairWeight + nodeWeight + setWeight))
	r.leases.Forget = func(_ endpick.LeaseRef, l *lease) { r.drop(l.pairs) }
}

// begin records the blocks of a request that its engine is not known to hold; if there
// is no room for all, the first of them.
func (r *routed) begin(e *endpick.Event) {
	x := r.x
	at := x.endpoints.Find(e.Candidate.Ref)
	if at == nil || at.knows() == Nothing {
		return
	}
	l := r.leases.At(e.Lease)
	if l == nil {
		return
	}
	l.pairs = r.slice()
	s := &x.store
	last := uint32(0)
	for _, key := range e.Request.Blocks {
		if len(r.counts)+len(at.feeds) > r.most {
			break
		}
		id := s.take(key, last)
		s.give(last)
		last = id
		for _, f := range at.feeds {
			if f.full != 0 && f.count == 1 && s.sets.mask(s.at(id).set, f.number)&f.full == f.full {
				continue // the engine holds it
			}
			pair := pairOf(id, f.number)
			l.pairs = append(l.pairs, pair)
			r.counts[pair]++
			if r.counts[pair] == 1 {
				s.at(id).refs++
				s.set(id, f.number, routedBit, true)
			}
		}
	}
	s.give(last)
	x.fit()
}

// computed records the first token.
func (r *routed) computed(ref endpick.LeaseRef, now time.Time) {
	l := r.leases.Find(ref)
	if l == nil || l.pairs == nil {
		return
	}
	r.grace = append(r.grace, waiting{now.Add(r.x.config.Grace), l.pairs})
	l.pairs = nil
}

// expire ends the requests whose grace is over.
func (r *routed) expire(now time.Time) {
	for r.first < len(r.grace) && !now.Before(r.grace[r.first].until) {
		r.drop(r.grace[r.first].pairs)
		r.grace[r.first] = waiting{}
		r.first++
	}
	if r.first > len(r.grace)/2 {
		n := copy(r.grace, r.grace[r.first:])
		clear(r.grace[n:])
		r.grace, r.first = r.grace[:n], 0
	}
}

func (r *routed) drop(pairs []uint64) {
	if pairs == nil {
		return
	}
	for _, pair := range pairs {
		if pair != gone {
			r.dropPair(pair)
		}
	}
	const mostSpare = 64
	if len(r.spare) < mostSpare {
		r.spare = append(r.spare, pairs[:0])
	}
}

func (r *routed) dropPair(pair uint64) {
	n := r.counts[pair] - 1
	if n > 0 {
		r.counts[pair] = n
		return
	}
	delete(r.counts, pair)
	id, feed := uint32(pair>>32), uint32(pair)
	r.x.store.set(id, feed, routedBit, false)
	r.x.store.give(id)
}

func (r *routed) slice() []uint64 {
	if n := len(r.spare); n > 0 {
		s := r.spare[n-1]
		r.spare = r.spare[:n-1]
		return s
	}
	return make([]uint64, 0, 64)
}

// gone replaces pairs of a feed that has ended.
const gone = 0

// unrouteFeed forgets what was routed for a feed.
func (x *Index) unrouteFeed(number uint32) {
	forget := func(pairs []uint64) {
		for i, pair := range pairs {
			if pair != gone && uint32(pair) == number {
				x.routed.dropPair(pair)
				pairs[i] = gone
			}
		}
	}
	for _, l := range x.routed.leases.All() {
		forget(l.pairs)
	}
	for i := range x.routed.grace[x.routed.first:] {
		forget(x.routed.grace[x.routed.first+i].pairs)
	}
}
