package prefix

import "slices"

// node is a run of blocks that always follow each other: an edge of a
// compressed trie. It is found by its parent and the first block of its run,
// so that blocks are compared for what they are and a block without its head
// is never found. Children follow the last block of the run.
type node struct {
	run      []uint64
	holders  []holder // by slot; never empty
	parent   uint32   // 0: the run begins a prompt
	children uint32
	full     uint32 // holders of the whole run; only they hold children
}

// holder says that an endpoint holds the first blocks of a node's run.
type holder struct {
	slot  uint32
	held  uint32 // at least 1
	entry uint32 // its place in the endpoint's LRU order
}

// holder returns the place of an endpoint among the holders, or where it
// would be.
func (n *node) holder(slot uint32) (int, bool) {
	lo, hi := 0, len(n.holders)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if n.holders[mid].slot < slot {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, lo < len(n.holders) && n.holders[lo].slot == slot
}

// step is a node on the way of a prompt, and how much of its run the prompt
// has.
type step struct {
	node uint32
	k    int
}

// trie holds the nodes.
type trie struct {
	nodes   arena[node]
	edges   table
	runs    slab[uint64]
	holders slab[holder]
	blocks  int // in all runs
}

// child returns the node that follows parent with this block, or 0.
func (t *trie) child(parent uint32, first uint64) uint32 {
	return t.edges.find(edgeTag(parent, first), func(id uint32) bool {
		n := t.nodes.at(id)
		return n.parent == parent && n.run[0] == first
	})
}

// walk appends to path the nodes on the way of the prompt. Only the last one
// may be left before its run ends.
func (t *trie) walk(path []step, blocks []uint64) []step {
	parent := uint32(0)
	for len(blocks) > 0 {
		id := t.child(parent, blocks[0])
		if id == 0 {
			break
		}
		run := t.nodes.at(id).run
		k := commonBlocks(run, blocks)
		path = append(path, step{id, k})
		if k < len(run) {
			break
		}
		blocks = blocks[k:]
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

// add makes a node, with no holders yet.
func (t *trie) add(parent uint32, blocks []uint64) uint32 {
	id, n := t.nodes.take()
	n.run = t.runs.take(len(blocks))
	copy(n.run, blocks)
	n.parent = parent
	t.edges.insert(edgeTag(parent, blocks[0]), id)
	if parent != 0 {
		t.nodes.at(parent).children++
	}
	t.blocks += len(blocks)
	return id
}

// extend lengthens the run of a node without children.
func (t *trie) extend(n *node, blocks []uint64) {
	old := len(n.run)
	n.run = t.runs.grow(n.run, old+len(blocks))
	copy(n.run[old:], blocks)
	n.full = 0
	t.blocks += len(blocks)
}

// cut puts a new node with the first k blocks above a node that keeps the
// rest, its children and its number, and returns the new node. The holders are
// still to be told apart.
func (t *trie) cut(id uint32, k int) uint32 {
	upper, u := t.nodes.take()
	n := t.nodes.at(id)
	t.edges.remove(edgeTag(n.parent, n.run[0]), id)
	t.edges.insert(edgeTag(n.parent, n.run[0]), upper)
	t.edges.insert(edgeTag(upper, n.run[k]), id)
	u.run = t.runs.take(k)
	copy(u.run, n.run)
	rest := t.runs.take(len(n.run) - k)
	copy(rest, n.run[k:])
	t.runs.give(n.run)
	n.run = rest
	u.parent, n.parent = n.parent, upper
	u.children = 1
	return upper
}

// tail forgets the last blocks of a run which nobody holds any more.
func (t *trie) tail(n *node) {
	most := uint32(0)
	for _, h := range n.holders {
		if h.held > most {
			most, n.full = h.held, 0
		}
		if h.held == most {
			n.full++
		}
	}
	t.blocks -= len(n.run) - int(most)
	n.run = n.run[:most]
}

// remove forgets a node without holders, and therefore without children.
func (t *trie) remove(id uint32) {
	n := t.nodes.at(id)
	t.edges.remove(edgeTag(n.parent, n.run[0]), id)
	if n.parent != 0 {
		t.nodes.at(n.parent).children--
	}
	t.blocks -= len(n.run)
	t.runs.give(n.run)
	t.holders.give(n.holders)
	t.nodes.give(id)
}

// addHolder inserts h at its place.
func (t *trie) addHolder(n *node, at int, h holder) {
	n.holders = t.holders.grow(n.holders, len(n.holders)+1)
	copy(n.holders[at+1:], n.holders[at:])
	n.holders[at] = h
	if int(h.held) == len(n.run) {
		n.full++
	}
}

// removeHolder takes out the holder at a place; its blocks are gone already.
func (t *trie) removeHolder(n *node, at int) {
	n.holders = slices.Delete(n.holders, at, at+1)
	if k := len(n.holders); k > 0 && cap(n.holders) >= 16 && k <= cap(n.holders)/4 {
		smaller := t.holders.take(k)
		copy(smaller, n.holders)
		t.holders.give(n.holders)
		n.holders = smaller
	}
}

func (t *trie) bytes() (all, idle int64) {
	runs, idleRuns := t.runs.bytes()
	holders, idleHolders := t.holders.bytes()
	return t.nodes.bytes() + t.edges.bytes() + runs + holders, idleRuns + idleHolders
}

// release gives up idle memory, n bytes if there are so many.
func (t *trie) release(n int64) {
	before, _ := t.bytes()
	t.runs.release(n)
	after, _ := t.bytes()
	t.holders.release(n - (before - after))
}
