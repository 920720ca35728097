package prefix

import (
	"iter"
	"math"
)

// hold says how far into a node's run an endpoint holds the prompt, in pieces that are
// always used together.
type hold struct {
	slot uint32
	to   uint32 // a depth within the run, or its end
	head *piece
}

// piece is a part of a hold. Along a prompt, the states of an endpoint's pieces never rise,
// nor do their users, and no piece was used later than the one before.
type piece struct {
	start  uint32 // depth of its first block; it ends where the next piece starts, or with the hold
	users  uint32 // open requests that include it
	use    *use   // the last one, or for a pending piece the first
	down   *piece // the next one of the hold
	state  state
	shared bool // several tenants have used it
	answer bool // known only from a response; no prompt has included it yet
}

// state says what an endpoint's engine has of a piece.
type state uint8

const (
	computed state = iota // it has it, until it evicts what was used least recently
	retained              // it would have evicted it, had a request under way not needed it
	pending               // it is about to compute it
)

// end is the depth at which a piece ends.
func (h *hold) end(p *piece) uint32 {
	if p.down != nil {
		return p.down.start
	}
	return h.to
}

// last returns the last piece of a hold, which may be nil, that starts before a depth.
func (h *hold) last(depth uint32) (last *piece) {
	for p := range h.until(depth) {
		last = p
	}
	return last
}

// until yields the pieces of a hold, which may be nil, that start before a depth.
func (h *hold) until(depth uint32) iter.Seq[*piece] {
	return func(yield func(*piece) bool) {
		if h != nil {
			for p := h.head; p != nil && p.start < depth && yield(p); p = p.down {
			}
		}
	}
}

// promise records that a request, if all goes well, has the endpoint compute blocks. They
// can be matched from now on. A piece ends where they end.
func (x *Index) promise(c *cache, l *lease, blocks []uint64) {
	if len(blocks) == 0 {
		return
	}
	x.path = x.tree.grow(x.tree.walk(x.path[:0], blocks), c.ref.Slot, blocks)
	for _, s := range x.path {
		x.promiseIn(c, l.use, s.node, s.to)
	}
	x.pend(l.use, useWeight)
	l.leaf, l.length = x.path[len(x.path)-1].node, len(blocks)
	c.open.push(ofOpen, l.use)
}

// promiseIn does so for one node.
func (x *Index) promiseIn(c *cache, u *use, n *node, to uint32) {
	at, ok := n.place(c.ref.Slot)
	if !ok {
		x.tree.addHold(n, at, c.ref.Slot, n.depth)
	}
	h := &n.holds[at]
	for p := range h.until(to) {
		if h.end(p) > to {
			x.cut(p, to)
		}
		x.changeUsers(c, h, p, 1)
	}
	if h.to >= to {
		return
	}
	p, down := x.pieces.take(), &h.head
	*p = piece{start: h.to, users: 1, use: u, state: pending, answer: u.response}
	if last := h.last(h.to); last != nil {
		down = &last.down
	}
	*down, h.to = p, to
	x.count(c, p, int(to-p.start))
}

func (x *Index) changeUsers(c *cache, h *hold, p *piece, by int) {
	blocks := int(h.end(p) - p.start)
	x.count(c, p, -blocks)
	p.users += uint32(by)
	x.count(c, p, blocks)
}

// cut splits a piece at a depth within it. The piece keeps the upper part.
func (x *Index) cut(p *piece, depth uint32) *piece {
	low := x.pieces.take()
	*low = *p
	low.start, p.down = depth, low
	if p.state == retained {
		x.retained += useWeight
	}
	return low
}

// join merges the pieces of a hold that nothing distinguishes any more.
func (x *Index) join(h *hold) {
	for p := range h.until(math.MaxUint32) {
		like := *p
		for low := p.down; low != nil; low = p.down {
			if like.start, like.down = low.start, low.down; like != *low {
				break
			}
			p.down = low.down
			x.pieces.give(low)
			if p.state == retained {
				x.retained -= useWeight
			}
		}
	}
}

// compute records that the endpoint has computed what a lease has promised.
func (x *Index) compute(c *cache, l *lease) {
	u := l.use
	u.leaf, u.epoch = l.leaf, c.ages.newest
	x.pend(u, -useWeight)
	for n, to := l.leaf, uint32(l.length); n != nil; n, to = n.parent, n.depth {
		h := n.hold(c.ref.Slot)
		for p := range h.until(to) {
			x.touch(c, h, p, u)
		}
		x.join(h)
	}
	c.order.push(ofCache, u)
	x.weight += useWeight
	if u.own > 0 {
		u.account.order.push(ofAccount, u)
		u.account.tenant.weight += useWeight
	}
}

// touch records that a piece was computed or found for this use.
func (x *Index) touch(c *cache, h *hold, p *piece, u *use) {
	blocks, before := int(h.end(p)-p.start), p.use
	x.count(c, p, -blocks)
	if p.state != pending && before.account != u.account {
		p.shared = true
	}
	if p.state != computed || before.epoch != u.epoch {
		c.ages.used += blocks
	}
	p.use, p.state = u, computed
	p.answer = p.answer && u.response
	x.count(c, p, blocks)
	x.settle(before)
}

// end ends what a lease has promised. The endpoint keeps what it has computed, and what
// other requests need.
func (x *Index) end(l *lease) {
	n, to, c := l.leaf, uint32(l.length), l.use.account.cache
	if n == nil {
		return
	}
	if l.leaf = nil; l.use.leaf == nil {
		x.pend(l.use, -useWeight)
	}
	c.open.remove(ofOpen, l.use)
	for n != nil {
		parent, depth := n.parent, n.depth
		at, _ := n.place(c.ref.Slot)
		h := &n.holds[at]
		for p := range h.until(to) {
			x.changeUsers(c, h, p, -1)
		}
		for h != nil {
			p := h.last(h.to)
			if p.users > 0 || p.state == computed {
				break
			}
			h = x.drop(c, n, at, p, h.to-p.start)
		}
		x.join(h)
		n, to = parent, depth
	}
}

// drop removes blocks of the last piece of a hold, and what becomes empty by that. It
// returns the hold, or nil if that is gone.
func (x *Index) drop(c *cache, n *node, at int, p *piece, blocks uint32) *hold {
	h, u := &n.holds[at], p.use
	x.count(c, p, -int(blocks))
	if h.to -= blocks; h.to == p.start {
		if up := h.last(p.start); up != nil {
			up.down = nil
		} else if h = nil; u.leaf == n {
			u.leaf = n.parent
		}
		if h == nil {
			x.tree.removeHold(n, at)
		}
		x.pieces.give(p)
	}
	x.settle(u)
	x.tree.shorten(n)
	return h
}
