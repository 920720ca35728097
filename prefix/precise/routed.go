package precise

import (
	"slices"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

// promise is what was sent to an engine so recently that its events can't have arrived:
// the last blocks of a prompt, which count as held from when the request is routed until
// Grace after its first token. If it ends before, they count no more.
type promise struct {
	feeds  []*Feed // of the endpoint; those that have ended since need nothing any more
	leaf   *node   // the last block, to which it refers
	blocks int     // that one and those before it
}

// graced is a promise after the first token.
type graced struct {
	promise
	until time.Time
}

// promise records the blocks of a request, except those at its head that all ranks of its
// endpoint are known to hold; if there is no room for all, the first of them.
func (x *Index) promise(e *endpick.Event, at *endpoint) {
	p := x.leases.At(e.Lease)
	if p == nil {
		return
	}
	p.feeds = at.feeds
	s := &x.store
	most := int(x.config.MaxBytes / 8 / (pairWeight + nodeWeight + 4*memberWeight))
	for _, key := range e.Request.Blocks {
		if x.expected+len(p.feeds) > most {
			break
		}
		n := s.take(key, p.leaf)
		if n.parent != p.leaf { // an event has named it after another one
			s.give(n)
			break
		}
		s.give(p.leaf)
		p.leaf = n
		if p.blocks > 0 || !n.heldBy(p.feeds) {
			p.blocks++
			x.expect(p.feeds, n, 1)
		}
	}
	x.fit()
}

// heldBy reports whether all feeds hold a block in the only cache of their engine.
func (n *node) heldBy(feeds []*Feed) bool {
	for _, f := range feeds {
		if _, mask := n.find(f.number); f.count != 1 || mask&f.full == 0 {
			return false
		}
	}
	return true
}

// expect adds to the number of promises of a block.
func (x *Index) expect(feeds []*Feed, n *node, by int) {
	for _, f := range feeds {
		if f.closed {
			continue
		}
		before := f.routed[n]
		f.routed[n] = before + by
		if before == 0 {
			x.store.set(n, f.number, routedBit, true)
			x.count(1)
		} else if before+by == 0 {
			f.unroute(n)
		}
	}
}

// unroute forgets all promises of a block.
func (f *Feed) unroute(n *node) {
	delete(f.routed, n)
	f.index.store.set(n, f.number, routedBit, false)
	f.index.count(-1)
}

// count adds pairs of a block and a feed that should report it.
func (x *Index) count(pairs int) {
	x.expected += pairs
	x.store.bytes += int64(pairs) * pairWeight
}

// computed records the first token.
func (x *Index) computed(ref endpick.LeaseRef, now time.Time) {
	if p := x.leases.Find(ref); p != nil && p.leaf != nil {
		x.grace = append(x.grace, graced{*p, now.Add(x.config.Grace)})
		*p = promise{}
	}
}

// expire ends the promises whose grace is over.
func (x *Index) expire(now time.Time) {
	n := 0
	for ; n < len(x.grace) && !now.Before(x.grace[n].until); n++ {
		x.grace[n].confirm()
		x.drop(&x.grace[n].promise)
	}
	x.grace = slices.Delete(x.grace, 0, n)
}

// confirm counts whether events have named a block of the prompt. One that fills no block of the
// engine's is none's.
func (p *promise) confirm() {
	tokens := 0
	for n := p.leaf; n != nil; n = n.parent {
		tokens += prefix.BlockTokens
		for _, f := range p.feeds {
			if _, mask := n.find(f.number); mask&^routedBit != 0 {
				f.stats.Confirmed++
				return
			}
		}
	}
	for _, f := range p.feeds {
		if tokens >= f.grain {
			f.stats.Unconfirmed++
		}
	}
}

// drop ends a promise.
func (x *Index) drop(p *promise) {
	for n := p.leaf; p.blocks > 0; p.blocks-- {
		x.expect(p.feeds, n, -1)
		n = n.parent
	}
	x.store.give(p.leaf)
	*p = promise{}
}
