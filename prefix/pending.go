package prefix

import (
	"slices"

	"github.com/endpick/endpick"
)

// lease is what the index remembers of a routed request.
type lease struct {
	ref     endpick.EndpointRef
	account uint32
	bound   int  // of the endpoint, for this request
	whole   bool // bound is the whole KV cache
	// A lease vouches for the beginning of the prompt, up to depth to in node leaf, and is
	// in a list of its endpoint: in prefill, while the engine may not have computed the
	// prompt yet, or running, until the request is done or its blocks have to go.
	vouches bool
	prefill bool
	leaf    uint32
	to      uint32
	newer   endpick.LeaseRef
	older   endpick.LeaseRef
	// doubtful: some of the matched blocks were pending, so what the engine will
	// report of them says nothing about evictions.
	doubtful bool
	matched  int // blocks that were there before
	proven   int // matched blocks that a prompt, not only a response, has included
	age      int // of the last matched block: how many the engine kept longer, as far as was known
	unseen   int // how many others it may have needed besides
	// The whole prompt as it was sent: its blocks, and the hash of the last, which covers all of them.
	blocks int
	end    uint64
	// response is the depth from which it vouches for a response; noResponse if
	// for a prompt only.
	response uint32
}

const noResponse = ^uint32(0)

// leases is a list of an endpoint's leases, by when they came into it.
type leases struct{ newest, oldest endpick.LeaseRef }

func (x *Index) enlist(q *leases, ref endpick.LeaseRef, l *lease) {
	l.newer, l.older = endpick.LeaseRef{}, q.newest
	if older := x.leases.Find(q.newest); older != nil {
		older.newer = ref
	} else {
		q.oldest = ref
	}
	q.newest = ref
}

func (x *Index) delist(q *leases, l *lease) {
	if newer := x.leases.Find(l.newer); newer != nil {
		newer.older = l.older
	} else {
		q.newest = l.older
	}
	if older := x.leases.Find(l.older); older != nil {
		older.newer = l.newer
	} else {
		q.oldest = l.newer
	}
}

// look records what the endpoint holds of the path.
func (x *Index) look(l *lease, s *server) {
	at := 0
	for _, p := range x.path {
		n := x.trie.nodes.at(p.node)
		var ok bool
		if at, ok = n.near(at, l.ref.Slot); !ok {
			return
		}
		h := &n.holders.all()[at]
		to := min(h.to, p.to)
		l.matched = int(to)
		for id := h.head; id != 0; {
			en := x.entries.at(id)
			if en.start >= to {
				break
			}
			if en.sure() {
				l.age = s.ages.needed(en.epoch)
			} else {
				l.doubtful = true
			}
			if !en.told {
				l.proven = int(min(x.endIn(en, h), to))
			}
			id = en.down
		}
	}
}

// vouch makes a lease vouch for blocks, of which x.path has the nodes so far.
// They can be matched from now on.
func (x *Index) vouch(ref endpick.LeaseRef, l *lease, s *server, blocks []uint64) {
	if len(blocks) == 0 {
		return
	}
	x.grow(l.ref.Slot, blocks)
	at := 0
	for i := range x.path {
		at = x.vouchIn(l, s, &x.path[i], at)
	}
	leaf := x.path[len(x.path)-1]
	l.vouches, l.prefill, l.leaf, l.to = true, true, leaf.node, leaf.to
	x.trie.nodes.at(leaf.node).rests++
	x.enlist(&s.prefill, ref, l)
	for _, p := range x.path {
		if x.mayJoin(p.node) {
			x.untidy = append(x.untidy, p.node)
		}
	}
}

// grow adds the blocks after the path, which no endpoint has: to the last run
// if only this endpoint holds it, else as a new node.
func (x *Index) grow(slot uint32, blocks []uint64) {
	depth, parent := uint32(0), uint32(0)
	if last := len(x.path) - 1; last >= 0 {
		p := &x.path[last]
		depth, parent = p.to, p.node
		if int(depth) == len(blocks) {
			return
		}
		n := x.trie.nodes.at(parent)
		if depth == n.end() && n.holders.len() == 1 && n.holders.all()[0].slot == slot {
			x.trie.extend(n, blocks[depth:])
			p.to = n.end()
			return
		}
	}
	id := x.trie.add(parent, depth, blocks[depth:])
	x.path = append(x.path, step{id, uint32(len(blocks))})
}

// vouchIn does so for one node. It returns the endpoint's index among the
// holders, which is near that among the parent's.
func (x *Index) vouchIn(l *lease, s *server, p *step, place int) int {
	n := x.trie.nodes.at(p.node)
	at, ok := n.near(place, l.ref.Slot)
	if !ok {
		id := x.pend(s, l, p.node, n.depth, p.to)
		x.trie.addHolder(n, at, holder{slot: l.ref.Slot, to: p.to, head: id})
		return at
	}
	h := &n.holders.all()[at]
	last := uint32(0)
	for id := h.head; id != 0; {
		en := x.entries.at(id)
		if en.start >= p.to {
			break
		}
		if end := x.endIn(en, h); end > p.to {
			x.cut(s, id, p.to)
		}
		if en.vouchers++; en.vouchers == 1 && en.sure() {
			*s.ages.busyAt(en.epoch) += x.endIn(en, h) - en.start
		}
		last, id = id, en.down
	}
	if h.to < p.to {
		x.entries.at(last).down = x.pend(s, l, p.node, h.to, p.to)
		h.to = p.to
		if h.to == n.end() {
			n.full++
		}
	}
	return at
}

// endIn is endOf for a known hold.
func (x *Index) endIn(en *entry, h *holder) uint32 {
	if en.down != 0 {
		return x.entries.at(en.down).start
	}
	return h.to
}

// confirm records that the engine has computed what a lease vouches for: the endpoint
// holds it, and has just used it.
func (x *Index) confirm(ref endpick.LeaseRef, l *lease, s *server) {
	x.delist(&s.prefill, l)
	x.enlist(&s.running, ref, l)
	l.prefill = false
	x.climb(l, s, (*Index).confirmIn)
}

// confirmIn does so for one hold.
func (x *Index) confirmIn(l *lease, s *server, h *holder, to uint32) {
	for _, id := range slices.Backward(x.before(h, to)) {
		start := x.entries.at(id).start
		x.use(s, id, to, l)
		x.join(s, id)
		to = start
	}
}

// settle ends what a lease vouches for. The endpoint keeps what is sure, and what other
// leases vouch for.
func (x *Index) settle(l *lease, s *server) {
	q := &s.running
	if l.prefill {
		q = &s.prefill
	}
	x.delist(q, l)
	l.vouches, l.prefill = false, false
	x.trie.nodes.at(l.leaf).rests--
	x.untidy = append(x.untidy, l.leaf)
	x.climb(l, s, (*Index).retract)
}

// climb calls f with each of the endpoint's holds for which a lease vouches, and the
// depth up to which it does, from the end of the prompt to its beginning.
func (x *Index) climb(l *lease, s *server, f func(x *Index, l *lease, s *server, h *holder, to uint32)) {
	id, to, at := l.leaf, l.to, 0
	for id != 0 {
		n := x.trie.nodes.at(id)
		parent, depth := n.parent, n.depth
		at, _ = n.near(at, l.ref.Slot)
		f(x, l, s, &n.holders.all()[at], to)
		id, to = parent, depth
	}
}

// before collects an endpoint's entries of a run that start before depth.
func (x *Index) before(h *holder, depth uint32) []uint32 {
	x.chain = x.chain[:0]
	for id := h.head; id != 0; {
		en := x.entries.at(id)
		if en.start >= depth {
			break
		}
		x.chain = append(x.chain, id)
		id = en.down
	}
	return x.chain
}

func (x *Index) retract(l *lease, s *server, h *holder, to uint32) {
	for _, id := range slices.Backward(x.before(h, to)) {
		en := x.entries.at(id)
		start := en.start
		if en.vouchers--; en.vouchers == 0 && en.sure() {
			*s.ages.busyAt(en.epoch) -= to - start
		}
		if !en.sure() && en.vouchers == 0 {
			x.drop(s, l.ref.Slot, id, to, int(to-start))
		} else {
			x.join(s, id)
		}
		to = start
	}
}
