package prefix

import (
	"slices"
	"time"

	"github.com/endpick/endpick"
)

// lease is what the index remembers of a routed request.
type lease struct {
	ref     endpick.Ref
	account uint32
	bound   int  // of the endpoint, by this request
	whole   bool // that is all that its KV cache holds
	// prefill: nobody knows yet whether the engine computes the prompt. Until
	// then the lease vouches for the head of its prompt that ends at depth to
	// in node leaf, and is in the list of its endpoint.
	prefill    bool
	leaf       uint32
	to         uint32
	next, last endpick.LeaseRef
	// doubtful: some of the matched blocks were pending. What the engine will
	// report of them says nothing about evictions.
	doubtful bool
	matched  int           // blocks that were there before
	proven   int           // of the matched blocks, those that a prompt has gone through
	idle     time.Duration // of the last matched block that is sure
	age      int           // blocks used more recently than the last matched one, and it
	// The prompt, whole as it was sent: its blocks and their digest.
	blocks int
	digest uint64
	// response is the depth from which on it vouches for a response; noResponse:
	// it vouches for a prompt.
	response uint32
}

const noResponse = ^uint32(0)

// look notes what the endpoint holds of the path.
func (x *Index) look(l *lease, s *server, now time.Time) {
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
				l.age, l.idle = s.ages.distance(en.epoch), s.ages.idle(en.epoch, now)
			} else {
				l.doubtful = true
			}
			if !en.told {
				l.proven = int(min(x.endIn(en, h), to))
			}
			id = en.down
		}
		if h.to < p.to {
			return
		}
	}
}

// vouch lets a lease vouch for blocks, whose nodes so far are x.path: they are
// matched from now on.
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
	l.prefill, l.leaf, l.to = true, leaf.node, leaf.to
	x.trie.nodes.at(leaf.node).rests++
	l.next, l.last = s.leases, endpick.LeaseRef{}
	if first := x.leases.Find(s.leases); first != nil {
		first.last = ref
	}
	s.leases = ref
	for _, p := range x.path {
		if x.mayJoin(p.node) {
			x.untidy = append(x.untidy, p.node)
		}
	}
}

// grow adds what nobody has after the path: to the last run if this endpoint
// alone has it, else as a new node.
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

// vouchIn does so for one node, and returns the endpoint's place among its
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
		en.vouchers++
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

// endIn is endOf where the hold is known.
func (x *Index) endIn(en *entry, h *holder) uint32 {
	if en.down != 0 {
		return x.entries.at(en.down).start
	}
	return h.to
}

// settle ends what a lease vouches for. If the engine has computed the prompt,
// the endpoint holds it and has just used it; else it keeps what it was sure to
// hold and what other leases vouch for.
func (x *Index) settle(l *lease, s *server, computed bool) {
	l.prefill = false
	if next := x.leases.Find(l.next); next != nil {
		next.last = l.last
	}
	if last := x.leases.Find(l.last); last != nil {
		last.next = l.next
	} else {
		s.leases = l.next
	}
	id, to := l.leaf, l.to
	x.trie.nodes.at(id).rests--
	x.untidy = append(x.untidy, id)
	at := 0
	for id != 0 {
		n := x.trie.nodes.at(id)
		parent, depth := n.parent, n.depth
		at, _ = n.near(at, l.ref.Slot)
		h := &n.holders.all()[at]
		if computed {
			x.confirm(l, s, h, to)
		} else {
			x.retract(l, s, h, to)
		}
		id, to = parent, depth
	}
}

// before collects an endpoint's entries of a run that start before a depth.
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

func (x *Index) confirm(l *lease, s *server, h *holder, to uint32) {
	for _, id := range slices.Backward(x.before(h, to)) {
		en := x.entries.at(id)
		en.vouchers--
		x.use(s, id, to, l)
		x.join(s, id)
		to = en.start
	}
}

func (x *Index) retract(l *lease, s *server, h *holder, to uint32) {
	for _, id := range slices.Backward(x.before(h, to)) {
		en := x.entries.at(id)
		en.vouchers--
		start := en.start
		if !en.sure() && en.vouchers == 0 {
			x.drop(s, l.ref.Slot, id, to, int(to-start))
		} else {
			x.join(s, id)
		}
		to = start
	}
}
