package prefix

// entry is a part of one endpoint's hold on a node's run: blocks that are
// always used together. A sure entry was computed by the engine, and has a
// place in the LRU orders of its endpoint and its account. A pending entry may
// not have been computed; it stays as long as a lease vouches for it. So does one
// that is kept: its blocks had to make room for others, but the engine, which needs
// them for requests under way, still has them.
//
// A path is touched from its end to its head, so that a head is never older
// than what follows it: after an endpoint's or an account's oldest entry
// nothing sure follows.
type entry struct {
	node     uint32
	account  uint32
	start    uint32 // depth of its first block; it ends where the next entry starts, or at the end of the hold
	down     uint32 // the endpoint's next entry in the run
	orders   [2]place
	epoch    uint32 // of the last use, see ages; or unsure
	kept     bool   // unsure, after it was sure
	vouchers uint32 // leases that vouch for it
	told     bool   // known only from a response; no prompt has included it yet
}

const unsure = ^uint32(0)

func (e *entry) sure() bool { return e.epoch != unsure }

// place links an entry into an order.
type place struct{ newer, older uint32 }

// order is a list of entries by last use.
type order struct{ newest, oldest uint32 }

const (
	inServer  = 0 // index of the place in the endpoint's order
	inAccount = 1 // and of that in its account's
)

// link inserts an entry into an order directly after the entry above, which is
// more recent, or as the newest if above is 0.
func (x *Index) link(o *order, which int, id, above uint32) {
	p := &x.entries.at(id).orders[which]
	p.newer = above
	if above == 0 {
		p.older, o.newest = o.newest, id
	} else {
		a := &x.entries.at(above).orders[which]
		p.older, a.older = a.older, id
	}
	if p.older == 0 {
		o.oldest = id
	} else {
		x.entries.at(p.older).orders[which].newer = id
	}
}

func (x *Index) unlink(o *order, which int, en *entry) {
	p := &en.orders[which]
	if p.newer == 0 {
		o.newest = p.older
	} else {
		x.entries.at(p.newer).orders[which].older = p.older
	}
	if p.older == 0 {
		o.oldest = p.newer
	} else {
		x.entries.at(p.older).orders[which].newer = p.newer
	}
	*p = place{}
}

// server is what the index knows about one endpoint.
type server struct {
	order   order
	held    int  // sure blocks
	pending int  // pending blocks
	kept    int  // blocks that are kept
	bound   int  // most blocks, as of the last computed request
	whole   bool // bound is the whole KV cache
	largest uint32
	prefill leases // that vouch for blocks that may not have been computed
	running leases // that vouch for blocks that have been
	ages    ages
	trust   trust
}

// book adds blocks and entries to the counts, or removes them.
func (x *Index) book(s *server, en *entry, blocks, entries int) {
	a := x.accounts.at(en.account)
	t := x.tenants.at(a.tenant)
	weight := blocks + entryWeight*entries
	if en.kept {
		s.kept += blocks
		a.kept += blocks
		x.kept += weight
		return
	}
	if !en.sure() {
		s.pending += blocks
		a.pending += blocks
		t.pending += weight
		x.pending += weight
		return
	}
	s.held += blocks
	a.held += blocks
	t.weight += weight
	x.weight += weight
	*s.ages.at(en.epoch) += uint32(blocks)
	if en.vouchers > 0 {
		*s.ages.busyAt(en.epoch) += uint32(blocks)
	}
}

// endOf is the depth at which an entry ends.
func (x *Index) endOf(en *entry, slot uint32) uint32 {
	if en.down != 0 {
		return x.entries.at(en.down).start
	}
	n := x.trie.nodes.at(en.node)
	at, _ := n.holder(slot)
	return n.holders.all()[at].to
}

// pend makes a pending entry for blocks that only this lease vouches for, or two if
// the response begins among them.
func (x *Index) pend(s *server, l *lease, nodeID, start, end uint32) uint32 {
	id, en := x.entries.take()
	*en = entry{node: nodeID, account: l.account, start: start, epoch: unsure, vouchers: 1}
	x.book(s, en, int(end-start), 1)
	if start < l.response && l.response < end {
		x.cut(s, id, l.response)
	}
	return id
}

// cut splits an entry at a depth within it. The entry keeps the upper part; the
// lower part becomes a new entry after it in the orders.
func (x *Index) cut(s *server, id, depth uint32) uint32 {
	lowID, low := x.entries.take()
	en := x.entries.at(id)
	*low = *en
	low.start, en.down = depth, lowID
	if en.sure() {
		x.link(&s.order, inServer, lowID, id)
		x.link(&x.accounts.at(en.account).order, inAccount, lowID, id)
	}
	x.book(s, low, 0, 1)
	return lowID
}

// join merges an entry with the next one of the run, if nothing distinguishes
// them any more.
func (x *Index) join(s *server, id uint32) {
	en := x.entries.at(id)
	lowID := en.down
	if lowID == 0 {
		return
	}
	low := x.entries.at(lowID)
	if low.vouchers != en.vouchers || low.told != en.told || low.kept != en.kept || low.account != en.account || low.epoch != en.epoch || en.orders[inServer].older != lowID && en.sure() {
		return
	}
	if en.sure() {
		x.leave(s, low)
	}
	x.book(s, low, 0, -1)
	en.down = low.down
	x.entries.give(lowID)
}

// enter makes an entry the most recent one of its endpoint and account.
func (x *Index) enter(s *server, id uint32) {
	x.link(&s.order, inServer, id, 0)
	x.link(&x.accounts.at(x.entries.at(id).account).order, inAccount, id, 0)
}

func (x *Index) leave(s *server, en *entry) {
	x.unlink(&s.order, inServer, en)
	x.unlink(&x.accounts.at(en.account).order, inAccount, en)
}

// use records that the engine has just used an entry for a request of the
// lease's tenant. A pending entry becomes the tenant's; one of another tenant
// becomes common.
func (x *Index) use(s *server, id, end uint32, l *lease) {
	en, account := x.entries.at(id), l.account
	blocks := int(end - en.start)
	owner := account
	if l.response == noResponse {
		en.told = false
	} else if !en.sure() {
		en.told = en.start >= l.response
	}
	if en.sure() {
		if en.account == account && en.epoch == s.ages.newest && s.order.newest == id {
			return
		}
		if en.account != account {
			owner = x.common(account)
		}
		x.leave(s, en)
	}
	x.book(s, en, -blocks, -1)
	x.own(en, owner)
	en.epoch, en.kept = s.ages.newest, false
	x.book(s, en, blocks, 1)
	x.enter(s, id)
}

// forget removes the last blocks of a sure entry from the orders; nothing sure
// follows them. If a lease vouches for them they are kept.
func (x *Index) forget(s *server, slot, id uint32, by int) {
	en := x.entries.at(id)
	end := x.endOf(en, slot)
	if en.vouchers == 0 {
		x.drop(s, slot, id, end, by)
		return
	}
	if by < int(end-en.start) {
		id = x.cut(s, id, end-uint32(by))
		en = x.entries.at(id)
	}
	x.leave(s, en)
	x.book(s, en, -by, -1)
	en.epoch, en.kept = unsure, true
	x.book(s, en, by, 1)
	x.join(s, id)
}

// drop removes the last blocks of an endpoint's last entry of a run, and what
// becomes empty by that.
func (x *Index) drop(s *server, slot, id, end uint32, by int) {
	en := x.entries.at(id)
	nodeID := en.node
	n := x.trie.nodes.at(nodeID)
	at, _ := n.holder(slot)
	h := &n.holders.all()[at]
	if h.to == n.end() {
		n.full--
	}
	h.to -= uint32(by)
	if h.to > en.start {
		x.book(s, en, -by, 0)
	} else {
		x.book(s, en, -by, -1)
		if en.sure() {
			x.leave(s, en)
		}
		if h.head != id {
			up := x.entries.at(h.head)
			for up.down != id {
				up = x.entries.at(up.down)
			}
			up.down = 0
		} else {
			x.trie.removeHolder(n, at)
			x.untidy = append(x.untidy, nodeID)
		}
		account := en.account
		x.entries.give(id)
		x.release(account)
	}
	if n.holders.len() == 0 {
		x.untidy = append(x.untidy, n.parent)
		x.trie.remove(nodeID)
		return
	}
	if n.full == 0 {
		x.trie.trim(n)
		x.untidy = append(x.untidy, nodeID)
	}
}

// tidy joins the runs that need not be separate any more.
func (x *Index) tidy() {
	for _, id := range x.untidy {
		for id != 0 && x.mayJoin(id) {
			child := x.trie.nodes.at(id).kids
			x.joinRuns(id, child)
			id = child
		}
	}
	x.untidy = x.untidy[:0]
}

// mayJoin reports whether a node exists and has an only child that continues it
// directly and is held by nearly as many endpoints: joining costs a step per
// holder, so it has to save about as many.
func (x *Index) mayJoin(id uint32) bool {
	n := x.trie.nodes.find(id)
	if n == nil || n.children != 1 || n.rests > 0 {
		return false
	}
	c := x.trie.nodes.at(n.kids)
	return c.depth == n.end() && n.holders.len() <= 2*c.holders.len()
}

func (x *Index) joinRuns(id, childID uint32) {
	x.trie.prepend(id, childID)
	n, c := x.trie.nodes.at(id), x.trie.nodes.at(childID)
	above, below := n.holders.all(), c.holders.all()
	for i := range above {
		h := &above[i]
		last := h.head
		for en := h.head; en != 0; en = x.entries.at(en).down {
			x.entries.at(en).node = childID
			last = en
		}
		if len(below) > 0 && below[0].slot == h.slot {
			h.to = below[0].to
			x.entries.at(last).down = below[0].head
			below = below[1:]
			x.join(x.servers.Find(x.accounts.at(x.entries.at(last).account).ref), last)
		}
	}
	x.trie.holders.give(c.holders)
	c.holders = n.holders
	x.trie.nodes.give(id)
}
