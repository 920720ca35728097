package prefix

import (
	"fmt"

	"github.com/endpick/endpick"
)

// check checks the index for inconsistencies.
func (x *Index) check() error {
	for _, check := range []func() error{x.checkNodes, x.checkServers, x.checkAccounts, x.checkLeases} {
		if err := check(); err != nil {
			return err
		}
	}
	if len(x.untidy) > 0 {
		return fmt.Errorf("nodes %v are left untidy", x.untidy)
	}
	return nil
}

func (x *Index) checkNodes() (err error) {
	t := &x.trie
	count, blocks, entries := 0, 0, 0
	var runs, holders int64
	children, kids := map[uint32]uint32{}, map[uint32]uint32{}
	t.nodes.all(func(id uint32, n *node) {
		if n.parent != 0 {
			children[n.parent]++
			kids[n.parent] ^= id
		}
	})
	t.nodes.all(func(id uint32, n *node) {
		count++
		blocks += n.run.len()
		runs += t.runs.weight(n.run)
		holders += t.holders.weight(n.holders)
		var held int
		if held, err = x.checkNode(id, n, err); err != nil {
			return
		}
		entries += held
		switch {
		case x.mayJoin(id):
			err = fmt.Errorf("node %d and its only child need not be apart", id)
		case n.children != children[id] || n.kids != kids[id]:
			err = fmt.Errorf("node %d: %d children counted %d", id, children[id], n.children)
		case t.child(n.parent, n.depth, n.first()) != id:
			err = fmt.Errorf("node %d is not found", id)
		case n.parent == 0 && n.depth != 0:
			err = fmt.Errorf("node %d: a prompt begins at depth %d", id, n.depth)
		}
		if p := n.parent; p != 0 && err == nil {
			if above := t.nodes.at(p); n.depth <= above.depth || n.depth > above.end() {
				err = fmt.Errorf("node %d at %d is not within its parent", id, n.depth)
			}
		}
	})
	switch {
	case err != nil:
	case entries != x.entries.count:
		err = fmt.Errorf("%d entries reached, %d in use", entries, x.entries.count)
	case count != t.nodes.count || count != t.edges.count:
		err = fmt.Errorf("%d nodes, %d in use, %d edges", count, t.nodes.count, t.edges.count)
	case blocks != t.blocks:
		err = fmt.Errorf("%d blocks counted %d", blocks, t.blocks)
	case runs != t.runs.lent || holders != t.holders.lent:
		err = fmt.Errorf("lent %d and %d, in use %d and %d", t.runs.lent, t.holders.lent, runs, holders)
	case idle(&t.runs) != t.runs.idle || idle(&t.holders) != t.holders.idle:
		err = fmt.Errorf("idle elements are not what is counted")
	}
	return err
}

// checkNode checks the holders of a node, and counts their entries.
func (x *Index) checkNode(id uint32, n *node, before error) (entries int, err error) {
	if before != nil {
		return 0, before
	}
	full, most, last := uint32(0), uint32(0), int64(-1)
	for _, h := range n.holders.all() {
		if int64(h.slot) <= last {
			return 0, fmt.Errorf("node %d: holders out of order", id)
		}
		last = int64(h.slot)
		most = max(most, h.to)
		if h.to == n.end() {
			full++
		}
		if h.to <= n.depth {
			return 0, fmt.Errorf("node %d: %d holds nothing of it", id, h.slot)
		}
		if n.parent != 0 {
			p := x.trie.nodes.at(n.parent)
			at, ok := p.holder(h.slot)
			if !ok || p.holders.all()[at].to < n.depth {
				return 0, fmt.Errorf("node %d: %d holds it without its head", id, h.slot)
			}
		}
		up, start := uint32(0), n.depth
		for e := h.head; e != 0; e = x.entries.at(e).down {
			en := x.entries.at(e)
			entries++
			if en.node != id || x.accounts.at(en.account).ref.Slot != h.slot || up == 0 && en.start != start || up != 0 && en.start <= start {
				return 0, fmt.Errorf("node %d: entry %d of %d is out of place", id, e, h.slot)
			}
			if up != 0 && en.sure() && !x.entries.at(up).sure() || up != 0 && en.vouchers > x.entries.at(up).vouchers {
				return 0, fmt.Errorf("node %d: entry %d of %d is surer than what comes before it", id, e, h.slot)
			}
			if en.sure() && en.kept {
				return 0, fmt.Errorf("node %d: entry %d is both sure and kept", id, e)
			}
			if !en.sure() && en.vouchers == 0 {
				return 0, fmt.Errorf("node %d: nobody vouches for entry %d", id, e)
			}
			if up != 0 && en.kept && x.alike(up, e) {
				return 0, fmt.Errorf("node %d: entries %d and %d are kept alike and need not be apart", id, up, e)
			}
			up, start = e, en.start
		}
		if start >= h.to {
			return 0, fmt.Errorf("node %d: entry %d begins at the end", id, up)
		}
	}
	if most != n.end() || n.full != full {
		return 0, fmt.Errorf("node %d: ends at %d, held to %d, full %d counted %d", id, n.end(), most, full, n.full)
	}
	return entries, nil
}

func (x *Index) alike(a, b uint32) bool {
	e, f := x.entries.at(a), x.entries.at(b)
	return e.account == f.account && e.epoch == f.epoch && e.kept == f.kept && e.told == f.told && e.vouchers == f.vouchers
}

func idle[T any](s *slab[T]) (n int64) {
	for _, free := range s.free {
		for _, x := range free {
			n += s.weight(x)
		}
	}
	return n
}

// checkServers walks the orders of all endpoints.
func (x *Index) checkServers() error {
	weight, pending, kept, sure := 0, 0, 0, 0
	for ref, s := range x.servers.All() {
		held := 0
		var counts, busy [epochs]uint32
		seen := map[uint32]bool{}
		newer := uint32(0)
		for id := s.order.newest; id != 0; id = x.entries.at(id).orders[inServer].older {
			en := x.entries.at(id)
			blocks := x.size(id, ref.Slot)
			held += blocks
			weight += blocks + entryWeight
			sure++
			if en.orders[inServer].newer != newer || x.accounts.at(en.account).ref != ref || !en.sure() {
				return fmt.Errorf("%v: entry %d is out of order", ref, id)
			}
			if above := x.aboveOf(en, ref.Slot); above != 0 && !seen[above] {
				return fmt.Errorf("%v: entry %d is older than what follows it", ref, id)
			}
			seen[id] = true
			for i := range counts {
				if s.ages.at(en.epoch) == &s.ages.count[i] {
					counts[i] += uint32(blocks)
					if en.vouchers > 0 {
						busy[i] += uint32(blocks)
					}
				}
			}
			newer = id
		}
		switch {
		case s.order.oldest != newer:
			return fmt.Errorf("%v: the oldest is %d, not %d", ref, s.order.oldest, newer)
		case held != s.held:
			return fmt.Errorf("%v: %d held, counted %d", ref, held, s.held)
		case s.held > s.capacity():
			return fmt.Errorf("%v: %d held, bound %d", ref, s.held, s.capacity())
		case counts != s.ages.count || busy != s.ages.busy:
			return fmt.Errorf("%v: ages %v and %v, counted %v and %v", ref, counts, busy, s.ages.count, s.ages.busy)
		}
	}
	x.entries.all(func(id uint32, en *entry) {
		if en.kept {
			kept += x.size(id, x.accounts.at(en.account).ref.Slot) + entryWeight
		} else if !en.sure() {
			pending += x.size(id, x.accounts.at(en.account).ref.Slot) + entryWeight
		} else {
			sure--
		}
	})
	if weight != x.weight || pending != x.pending || kept != x.kept || sure != 0 {
		return fmt.Errorf("weight %d, %d and %d, counted %d, %d and %d; %d in no order", weight, pending, kept, x.weight, x.pending, x.kept, sure)
	}
	return nil
}

// aboveOf returns the same endpoint's entry of the block before.
func (x *Index) aboveOf(en *entry, slot uint32) uint32 {
	if en.start == 0 {
		return 0
	}
	p := x.trie.nodes.at(en.node)
	if en.start == p.depth {
		p = x.trie.nodes.at(p.parent)
	}
	at, _ := p.holder(slot)
	chain := x.before(&p.holders.all()[at], en.start)
	return chain[len(chain)-1]
}

func (x *Index) checkAccounts() (err error) {
	held, pending, kept, weights, pendings := map[uint32]int{}, map[uint32]int{}, map[uint32]int{}, map[uint32]int{}, map[uint32]int{}
	x.entries.all(func(id uint32, en *entry) {
		a := x.accounts.at(en.account)
		blocks := x.size(id, a.ref.Slot)
		if en.sure() {
			held[en.account] += blocks
			weights[a.tenant] += blocks + entryWeight
		} else if en.kept {
			kept[en.account] += blocks
		} else {
			pending[en.account] += blocks
			pendings[a.tenant] += blocks + entryWeight
		}
	})
	leases := map[uint32]uint32{}
	for _, l := range x.leases.All() {
		leases[l.account]++
	}
	for ref, s := range x.servers.All() {
		if s.largest == 0 {
			continue
		}
		if a := x.accounts.find(s.largest); a == nil || a.ref != ref {
			err = fmt.Errorf("endpoint %v: account %d, which is said to be its largest, is %+v", ref, s.largest, a)
		}
	}
	if x.largest != 0 && x.tenants.find(x.largest) == nil {
		err = fmt.Errorf("tenant %d, which is said to hold the most, is not there", x.largest)
	}
	rings := map[uint32]int{}
	x.accounts.all(func(id uint32, a *account) {
		rings[a.tenant]++
		ordered, newer := 0, uint32(0)
		for e := a.order.newest; e != 0; e = x.entries.at(e).orders[inAccount].older {
			en := x.entries.at(e)
			ordered += x.size(e, a.ref.Slot)
			if en.account != id || en.orders[inAccount].newer != newer {
				err = fmt.Errorf("account %d: entry %d is out of order", id, e)
			}
			if above := x.aboveOf(en, a.ref.Slot); above != 0 && a.tenant == commons && x.accounts.at(x.entries.at(above).account).tenant != commons {
				err = fmt.Errorf("account %d: what entry %d follows is not common", id, e)
			} else if above != 0 && a.tenant != commons && x.entries.at(above).account != id && x.accounts.at(x.entries.at(above).account).tenant != commons {
				err = fmt.Errorf("account %d: entry %d follows another tenant's", id, e)
			}
			newer = e
		}
		if a.order.oldest != newer || ordered != held[id] || a.held != held[id] || a.pending != pending[id] || a.kept != kept[id] || a.leases != leases[id] {
			err = fmt.Errorf("account %d: %+v, in order %d, held %d, pending %d, kept %d, leases %d", id, a, ordered, held[id], pending[id], kept[id], leases[id])
		}
		if a.held+a.pending+a.kept+int(a.leases) == 0 {
			err = fmt.Errorf("account %d has nothing", id)
		}
	})
	x.tenants.all(func(id uint32, t *tenant) {
		if t.weight != weights[id] || t.pending != pendings[id] {
			err = fmt.Errorf("tenant %d: %+v, counted %d and %d", id, t, weights[id], pendings[id])
		}
		n := 0
		for at := t.accounts; at != 0; {
			n++
			next := x.accounts.at(at).next
			if x.accounts.at(next).last != at {
				err = fmt.Errorf("tenant %d: ring broken at %d", id, at)
				return
			}
			if at = next; at == t.accounts {
				break
			}
		}
		if n != rings[id] || n == 0 && id != commons {
			err = fmt.Errorf("tenant %d: %d accounts, %d in the ring", id, rings[id], n)
		}
	})
	return err
}

func (x *Index) checkLeases() error {
	rests, vouchers := map[uint32]uint32{}, map[uint32]uint32{}
	vouching, prefilling := map[endpick.EndpointRef]int{}, map[endpick.EndpointRef]int{}
	for key, l := range x.leases.All() {
		if !l.vouches {
			continue
		}
		vouching[l.ref]++
		if l.prefill {
			prefilling[l.ref]++
		}
		rests[l.leaf]++
		for id, to := l.leaf, l.to; id != 0; {
			n := x.trie.nodes.at(id)
			at, ok := n.holder(l.ref.Slot)
			if !ok || n.holders.all()[at].to < to {
				return fmt.Errorf("%v: what it vouches for is not held", key)
			}
			for e := n.holders.all()[at].head; e != 0 && x.entries.at(e).start < to; e = x.entries.at(e).down {
				vouchers[e]++
				if x.endOf(x.entries.at(e), l.ref.Slot) > to {
					to = 0
				}
			}
			if to == 0 {
				return fmt.Errorf("%v: ends within an entry", key)
			}
			id, to = n.parent, n.depth
		}
	}
	var err error
	x.entries.all(func(id uint32, en *entry) {
		if en.vouchers != vouchers[id] {
			err = fmt.Errorf("entry %d: %d leases vouch for it, counted %d", id, vouchers[id], en.vouchers)
		}
	})
	x.trie.nodes.all(func(id uint32, n *node) {
		if n.rests != rests[id] {
			err = fmt.Errorf("node %d: %d leases rest, counted %d", id, rests[id], n.rests)
		}
	})
	for ref, s := range x.servers.All() {
		for _, list := range []struct {
			leases
			want int
		}{{s.prefill, prefilling[ref]}, {s.running, vouching[ref] - prefilling[ref]}} {
			n, newer := 0, endpick.LeaseRef{}
			for key := list.newest; key != (endpick.LeaseRef{}); key = x.leases.Find(key).older {
				if l := x.leases.Find(key); l.newer != newer || l.ref != ref || !l.vouches {
					return fmt.Errorf("%v: %+v is out of order", key, l)
				}
				n++
				newer = key
			}
			if n != list.want || list.oldest != newer {
				err = fmt.Errorf("%v: %d leases vouch, %d in the list that ends with %v", ref, list.want, n, list.oldest)
			}
		}
	}
	return err
}
