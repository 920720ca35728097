package prefix

import "fmt"

// check looks for anything in the index that contradicts itself.
func (x *Index) check() error {
	nodes, err := x.checkNodes()
	if err != nil {
		return err
	}
	entries := 0
	for slot := range x.servers {
		n, err := x.checkServer(uint32(slot))
		if err != nil {
			return fmt.Errorf("slot %d: %w", slot, err)
		}
		entries += n
	}
	pending := 0
	for i := range x.leases {
		prev := uint32(0)
		for id := x.leases[i].pending; id != 0; id = x.entries.at(id).nextPending {
			en := x.entries.at(id)
			if en.lease != uint32(i)+1 || en.prevPending != prev {
				return fmt.Errorf("lease %d: entry %d is in the wrong list", i, id)
			}
			prev = id
			pending++
		}
	}
	marked := 0
	for id := uint32(1); id < x.entries.used; id++ {
		en := x.entries.at(id)
		if en.node == 0 {
			continue // free
		}
		if en.lease != 0 {
			marked++
		}
		if held := x.heldBy(id); int(en.sure) > held || (en.lease == 0) != (int(en.sure) == held) {
			return fmt.Errorf("entry %d: %d of %d sure, lease %d", id, en.sure, held, en.lease)
		}
	}
	switch {
	case pending != marked:
		return fmt.Errorf("%d entries in lists of leases, %d marked", pending, marked)
	case entries != x.entries.inUse():
		return fmt.Errorf("%d entries reached, %d in use", entries, x.entries.inUse())
	case nodes != x.trie.nodes.inUse() || nodes != x.trie.edges.count:
		return fmt.Errorf("%d nodes, %d in use, %d edges", nodes, x.trie.nodes.inUse(), x.trie.edges.count)
	}
	return nil
}

func (x *Index) checkNodes() (int, error) {
	t := &x.trie
	count, blocks := 0, 0
	var runs, holders int64
	children := map[uint32]uint32{}
	for id := uint32(1); id < t.nodes.used; id++ {
		if n := t.nodes.at(id); len(n.run) > 0 && n.parent != 0 {
			children[n.parent]++
		}
	}
	for id := uint32(1); id < t.nodes.used; id++ {
		n := t.nodes.at(id)
		if len(n.run) == 0 {
			continue // free
		}
		count++
		blocks += len(n.run)
		runs += int64(cap(n.run))
		holders += int64(cap(n.holders))
		full, most, before := uint32(0), uint32(0), int64(-1)
		for _, h := range n.holders {
			if int64(h.slot) <= before {
				return 0, fmt.Errorf("node %d: holders out of order", id)
			}
			before = int64(h.slot)
			most = max(most, h.held)
			if int(h.held) == len(n.run) {
				full++
			}
			en := x.entries.at(h.entry)
			if h.held == 0 || en.node != id || en.slot != h.slot {
				return 0, fmt.Errorf("node %d: holder %d is not its entry", id, h.slot)
			}
			if n.parent != 0 {
				p := t.nodes.at(n.parent)
				at, ok := p.holder(h.slot)
				if !ok || int(p.holders[at].held) != len(p.run) {
					return 0, fmt.Errorf("node %d: %d holds it without its head", id, h.slot)
				}
			}
		}
		switch {
		case int(most) != len(n.run) || n.full != full:
			return 0, fmt.Errorf("node %d: %d blocks, %d held, full %d counted %d", id, len(n.run), most, full, n.full)
		case n.children != children[id]:
			return 0, fmt.Errorf("node %d: %d children counted %d", id, children[id], n.children)
		case t.child(n.parent, n.run[0]) != id:
			return 0, fmt.Errorf("node %d is not found", id)
		}
	}
	switch {
	case blocks != t.blocks:
		return 0, fmt.Errorf("%d blocks counted %d", blocks, t.blocks)
	case runs != t.runs.lent || holders != t.holders.lent:
		return 0, fmt.Errorf("lent %d and %d, in use %d and %d", t.runs.lent, t.holders.lent, runs, holders)
	case idle(&t.runs) != t.runs.idle || idle(&t.holders) != t.holders.idle:
		return 0, fmt.Errorf("idle elements are not what is counted")
	}
	return count, nil
}

func idle[T any](s *slab[T]) (n int64) {
	for _, free := range s.free {
		for _, x := range free {
			n += int64(cap(x))
		}
	}
	return n
}

// checkServer walks the LRU order of an endpoint.
func (x *Index) checkServer(slot uint32) (entries int, err error) {
	s := &x.servers[slot]
	held := 0
	below := map[uint32]uint32{}
	seen := map[uint32]bool{} // nodes
	var counts [epochs]uint32
	newer := uint32(0)
	for id := s.newest; id != 0; id = x.entries.at(id).older {
		en := x.entries.at(id)
		n := x.trie.nodes.at(en.node)
		entries++
		held += x.heldBy(id)
		if en.newer != newer || en.slot != slot {
			return 0, fmt.Errorf("entry %d is out of order", id)
		}
		if n.parent != 0 {
			below[n.parent]++
			if !seen[n.parent] {
				return 0, fmt.Errorf("entry %d is older than what follows it", id)
			}
		}
		seen[en.node] = true
		for i := range counts {
			if s.ages.at(en.epoch) == &s.ages.count[i] {
				counts[i] += uint32(x.heldBy(id))
			}
		}
		newer = id
	}
	for id := s.newest; id != 0; id = x.entries.at(id).older {
		if en := x.entries.at(id); en.below != below[en.node] {
			return 0, fmt.Errorf("entry %d: %d below, counted %d", id, below[en.node], en.below)
		}
	}
	switch {
	case s.oldest != newer:
		return 0, fmt.Errorf("the oldest is %d, not %d", s.oldest, newer)
	case held != s.held || s.gone && held > 0:
		return 0, fmt.Errorf("%d held, counted %d", held, s.held)
	case s.held > s.capacity():
		return 0, fmt.Errorf("%d held, bound %d", s.held, s.capacity())
	case counts != s.ages.count:
		return 0, fmt.Errorf("ages %v, counted %v", counts, s.ages.count)
	}
	return entries, nil
}
