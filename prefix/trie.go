package prefix

// node is a run of blocks that follow each other: an edge of a compressed trie.
// It is found by its parent, the depth at which it branches off, and the first
// block of its run, so a block is never found without its prefix. Children may
// branch off after any block of the run, which is never split for them.
//
// Depths are counted in blocks from the beginning of the prompt, so they don't
// change when runs are joined.
type node struct {
	run      vec[uint64]
	holders  vec[holder] // by slot; never empty
	parent   uint32      // 0: the run begins a prompt
	depth    uint32      // blocks before the run
	children uint32
	kids     uint32 // XOR of the numbers of all children, which is the number of an only child
	full     uint32 // holders of the whole run
	rests    uint32 // open leases whose prompts end within the run
}

// end is the depth at which the run ends.
func (n *node) end() uint32 { return n.depth + n.run.n }

// near is like holder, for an endpoint whose index among the holders of the
// parent or a child is known: often it is the same.
func (n *node) near(place int, slot uint32) (int, bool) {
	if all := n.holders.all(); place < len(all) && all[place].slot == slot {
		return place, true
	}
	return n.holder(slot)
}

func (n *node) first() uint64 { return *n.run.p }

// holder says how far into a node's run an endpoint holds the prompt. A holder
// of a node holds its parent up to where the node branches off.
type holder struct {
	slot uint32
	to   uint32 // a depth within the run, or its end
	head uint32 // the first of its entries, which together cover the hold
}

// holder returns the index of an endpoint among the holders, or where to insert
// it.
func (n *node) holder(slot uint32) (int, bool) {
	all := n.holders.all()
	lo, hi := 0, len(all)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if all[mid].slot < slot {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, lo < len(all) && all[lo].slot == slot
}

// step is a node on a prompt's path, and the depth at which the prompt leaves
// it.
type step struct {
	node uint32
	to   uint32
}

// trie holds the nodes.
type trie struct {
	nodes   arena[node]
	edges   table
	runs    slab[uint64]
	holders slab[holder]
	blocks  int // in all runs
}

// child returns the node that follows parent at a depth and begins with this block, or 0.
func (t *trie) child(parent, depth uint32, first uint64) uint32 {
	return t.edges.find(edgeTag(parent, depth, first), func(id uint32) bool {
		n := t.nodes.at(id)
		return n.parent == parent && n.depth == depth && n.first() == first
	})
}

// walk appends to path the nodes on the prompt's path.
func (t *trie) walk(path []step, blocks []uint64) []step {
	parent, depth := uint32(0), uint32(0)
	for int(depth) < len(blocks) {
		id := t.child(parent, depth, blocks[depth])
		if id == 0 {
			break
		}
		depth += uint32(commonBlocks(t.nodes.at(id).run.all(), blocks[depth:]))
		path = append(path, step{id, depth})
		parent = id
	}
	return path
}

func commonBlocks(a, b []uint64) int {
	n := min(len(a), len(b))
	a, b = a[:n], b[:n]
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// add adds a node without holders.
func (t *trie) add(parent, depth uint32, blocks []uint64) uint32 {
	id, n := t.nodes.take()
	n.run = t.runs.take(len(blocks))
	copy(n.run.all(), blocks)
	n.parent, n.depth = parent, depth
	t.edges.insert(edgeTag(parent, depth, blocks[0]), id)
	t.adopt(parent, id, 1)
	t.blocks += len(blocks)
	return id
}

// adopt counts a child, or removes it with by ^0.
func (t *trie) adopt(parent, id, by uint32) {
	if parent != 0 {
		p := t.nodes.at(parent)
		p.children += by
		p.kids ^= id
	}
}

// extend lengthens a run; no endpoint holds the whole of it then.
func (t *trie) extend(n *node, blocks []uint64) {
	old := n.run.len()
	n.run = t.runs.grow(n.run, old+len(blocks))
	copy(n.run.all()[old:], blocks)
	n.full = 0
	t.blocks += len(blocks)
}

// trim removes the last blocks of a run if no endpoint holds the whole of it.
func (t *trie) trim(n *node) {
	most := n.depth
	for _, h := range n.holders.all() {
		if h.to > most {
			most, n.full = h.to, 0
		}
		if h.to == most {
			n.full++
		}
	}
	t.blocks -= int(n.end() - most)
	n.run = t.runs.shrink(n.run, int(most-n.depth))
}

// remove removes a node that has no holders, and therefore no children.
func (t *trie) remove(id uint32) {
	n := t.nodes.at(id)
	t.edges.remove(edgeTag(n.parent, n.depth, n.first()), id)
	t.adopt(n.parent, id, ^uint32(0))
	t.blocks -= n.run.len()
	t.runs.give(n.run)
	t.holders.give(n.holders)
	t.nodes.give(id)
}

// prepend merges a node into its only child, which begins where its run ends:
// the child keeps its number, so its own children need no update. Holders are
// joined by the caller.
func (t *trie) prepend(id, childID uint32) {
	n, c := t.nodes.at(id), t.nodes.at(childID)
	t.edges.remove(edgeTag(id, c.depth, c.first()), childID)
	tag := edgeTag(n.parent, n.depth, n.first())
	t.edges.remove(tag, id)
	t.edges.insert(tag, childID)
	t.adopt(n.parent, id, ^uint32(0))
	t.adopt(n.parent, childID, 1)
	head := n.run.len()
	run := t.runs.grow(n.run, head+c.run.len())
	copy(run.all()[head:], c.run.all())
	t.runs.give(c.run)
	c.run, c.parent, c.depth = run, n.parent, n.depth
}

// addHolder inserts h at index at.
func (t *trie) addHolder(n *node, at int, h holder) {
	n.holders = t.holders.grow(n.holders, n.holders.len()+1)
	all := n.holders.all()
	copy(all[at+1:], all[at:])
	all[at] = h
	if h.to == n.end() {
		n.full++
	}
}

// removeHolder removes the holder at an index; its blocks have been removed already.
func (t *trie) removeHolder(n *node, at int) {
	all := n.holders.all()
	copy(all[at:], all[at+1:])
	n.holders = t.holders.shrink(n.holders, n.holders.len()-1)
}

func (t *trie) bytes() (all, idle int64) {
	runs, idleRuns := t.runs.bytes()
	holders, idleHolders := t.holders.bytes()
	return t.nodes.bytes() + t.edges.bytes() + runs + holders, idleRuns + idleHolders
}

// release frees up to n bytes of idle memory.
func (t *trie) release(n int64) {
	before, _ := t.bytes()
	t.runs.release(n)
	after, _ := t.bytes()
	t.holders.release(n - (before - after))
}
