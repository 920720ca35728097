package prefix

// entry is one endpoint's hold on the run of one node: its place in the LRU
// order of that endpoint. A path is always touched from the leaf to the head,
// so that a head is never older than what follows it and the oldest entry has
// nothing below it.
type entry struct {
	node  uint32
	slot  uint32
	newer uint32
	older uint32
	epoch uint32 // of the last use; see ages
	below uint32 // children of the node that the endpoint holds too

	// Blocks beyond the first sure ones were put here by a request that has
	// not had its first token: nobody knows yet whether the engine has them.
	// lease is 1 + the slot of that request's lease; 0 if all are sure.
	sure        uint32
	lease       uint32
	nextPending uint32 // of the same lease, heads after leaves
	prevPending uint32
}

// server is what the index knows of one endpoint.
type server struct {
	gone    bool // removed; the generation is over
	newest  uint32
	oldest  uint32
	held    int // blocks
	bound   int // blocks, as of the last request
	learned int // blocks, from reports of cached tokens; 0: nothing learned

	lowered uint64 // reports that lowered learned
	ages    ages
}

// capacity is how many blocks may be held.
func (s *server) capacity() int {
	if s.learned > 0 {
		return min(s.learned, s.bound)
	}
	return s.bound
}

// touch makes an entry the most recent one of its endpoint.
func (x *Index) touch(s *server, id uint32, held uint32) {
	en := x.entries.at(id)
	*s.ages.at(en.epoch) -= held
	en.epoch = s.ages.newest
	*s.ages.at(en.epoch) += held
	if s.newest != id {
		x.unlink(s, en)
		x.linkAbove(s, id, s.newest)
	}
}

// linkAbove puts an entry into the order just above another one; above 0 it
// is the only one.
func (x *Index) linkAbove(s *server, id, other uint32) {
	en := x.entries.at(id)
	en.older = other
	if other == 0 {
		en.newer = 0
		s.newest, s.oldest = id, id
		return
	}
	o := x.entries.at(other)
	en.newer = o.newer
	o.newer = id
	if en.newer == 0 {
		s.newest = id
	} else {
		x.entries.at(en.newer).older = id
	}
}

func (x *Index) unlink(s *server, en *entry) {
	if en.newer == 0 {
		s.newest = en.older
	} else {
		x.entries.at(en.newer).older = en.older
	}
	if en.older == 0 {
		s.oldest = en.newer
	} else {
		x.entries.at(en.older).newer = en.newer
	}
}

// hold gives an endpoint the first held blocks of a run of which it had none,
// as its most recent ones, and returns the new entry.
func (x *Index) hold(s *server, slot, nodeID uint32, at, held int) uint32 {
	n := x.trie.nodes.at(nodeID)
	id, en := x.entries.take()
	en.node, en.slot, en.epoch = nodeID, slot, s.ages.newest
	x.trie.addHolder(n, at, holder{slot: slot, held: uint32(held), entry: id})
	x.linkAbove(s, id, s.newest)
	s.held += held
	*s.ages.at(en.epoch) += uint32(held)
	if up := x.above(en); up != nil {
		up.below++
	}
	return id
}

// above returns the same endpoint's entry of the parent node, nil at a root.
func (x *Index) above(en *entry) *entry {
	parent := x.trie.nodes.at(en.node).parent
	if parent == 0 {
		return nil
	}
	p := x.trie.nodes.at(parent)
	i, _ := p.holder(en.slot)
	return x.entries.at(p.holders[i].entry)
}

// lengthen gives a holder more blocks of its run.
func (x *Index) lengthen(s *server, n *node, at, held int) {
	h := &n.holders[at]
	more := uint32(held) - h.held
	h.held = uint32(held)
	if held == len(n.run) {
		n.full++
	}
	s.held += int(more)
	*s.ages.at(x.entries.at(h.entry).epoch) += more
}

// shorten takes the last blocks of an entry away, which has nothing below it,
// and the entry with the last of them.
func (x *Index) shorten(id uint32, by int) {
	en := x.entries.at(id)
	n := x.trie.nodes.at(en.node)
	s := &x.servers[en.slot]
	at, _ := n.holder(en.slot)
	h := &n.holders[at]
	if int(h.held) == len(n.run) {
		n.full--
	}
	h.held -= uint32(by)
	s.held -= by
	*s.ages.at(en.epoch) -= uint32(by)
	if en.sure >= h.held {
		x.settle(id, en, h.held)
	}
	if h.held == 0 {
		if up := x.above(en); up != nil {
			up.below--
		}
		x.unlink(s, en)
		x.trie.removeHolder(n, at)
		nodeID := en.node
		x.entries.give(id)
		if len(n.holders) == 0 {
			x.trie.remove(nodeID)
			return
		}
	}
	if n.full == 0 {
		x.trie.tail(n)
	}
}

// evict takes the oldest blocks of an endpoint away until it has at most
// capacity.
func (x *Index) evict(s *server, capacity int) {
	for s.held > capacity {
		by := min(s.held-capacity, x.heldBy(s.oldest))
		x.shorten(s.oldest, by)
		x.evicted += uint64(by)
	}
}

// heldBy is the number of blocks of an entry.
func (x *Index) heldBy(id uint32) int {
	en := x.entries.at(id)
	n := x.trie.nodes.at(en.node)
	at, _ := n.holder(en.slot)
	return int(n.holders[at].held)
}

// split cuts a run after its first k blocks, for all that hold it, and returns
// the node of these blocks.
func (x *Index) split(id uint32, k int) uint32 {
	upperID := x.trie.cut(id, k)
	n, u := x.trie.nodes.at(id), x.trie.nodes.at(upperID)
	u.holders, n.holders = n.holders, nil
	n.full = 0
	beyond := 0
	for _, h := range u.holders {
		if int(h.held) > k {
			beyond++
		}
	}
	rest := x.trie.holders.take(beyond)[:0]
	for i := range u.holders {
		h := &u.holders[i]
		if int(h.held) >= k {
			u.full++
		}
		if int(h.held) <= k {
			x.entries.at(h.entry).node = upperID
			continue
		}
		// The lower part keeps the entry; the upper part gets a new one just
		// above it.
		low := holder{slot: h.slot, held: h.held - uint32(k), entry: h.entry}
		if int(low.held) == len(n.run) {
			n.full++
		}
		rest = append(rest, low)
		h.held = uint32(k)
		x.splitEntry(h, upperID, uint32(k))
	}
	n.holders = rest
	return upperID
}

func (x *Index) splitEntry(h *holder, upperID uint32, k uint32) {
	lowID := h.entry
	upID, up := x.entries.take()
	low := x.entries.at(lowID)
	up.node, up.slot, up.epoch, up.below = upperID, h.slot, low.epoch, 1
	up.sure = min(low.sure, k)
	x.linkAbove(&x.servers[h.slot], upID, lowID)
	if low.lease != 0 && up.sure < k {
		x.pend(upID, up, low.lease, lowID)
	}
	low.sure -= up.sure
	h.entry = upID
}
