package prefix

import (
	"cmp"
	"slices"
)

// node is a run of blocks that follow each other: an edge of a radix tree. Other runs may
// branch off after any of its blocks, so that a run is never split. It is found by its
// parent, the depth at which it branches off, and its first block.
//
// Depths are counted in blocks from the beginning of the prompt.
type node struct {
	run    []uint64
	holds  []hold // by slot; never empty. Who holds a node holds its parent up to depth
	parent *node  // nil: the run begins a prompt
	depth  uint32 // blocks before the run
}

// end is the depth at which the run ends.
func (n *node) end() uint32 { return n.depth + uint32(len(n.run)) }

// hold returns an endpoint's hold on the node, or nil.
func (n *node) hold(slot uint32) *hold {
	if at, ok := n.place(slot); ok {
		return &n.holds[at]
	}
	return nil
}

// place returns the index of an endpoint's hold, or where to insert it.
func (n *node) place(slot uint32) (int, bool) {
	return slices.BinarySearchFunc(n.holds, slot, func(h hold, slot uint32) int { return cmp.Compare(h.slot, slot) })
}

// step is a node on a prompt's path, and the depth at which the prompt leaves it.
type step struct {
	*node
	to uint32
}

// tree holds the nodes.
type tree struct {
	edges  shrinking[edge, *node]
	nodes  pool[node]
	runs   runs
	blocks int // in all nodes
	holds  int // for which nodes have room
}

// edge is where a run branches off, and its first block.
type edge struct {
	parent *node
	depth  uint64 // of 64 bits, so that an edge has no gap and is hashed in one go
	first  uint64
}

// walk appends to path the nodes on the prompt's path.
func (t *tree) walk(path []step, blocks []uint64) []step {
	var parent *node
	depth := uint32(0)
	for int(depth) < len(blocks) {
		n := t.edges.entries[edge{parent, uint64(depth), blocks[depth]}]
		if n == nil {
			break
		}
		depth += uint32(commonBlocks(n.run, blocks[depth:]))
		path = append(path, step{n, depth})
		parent = n
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

// grow adds to a path the blocks after it, which no endpoint has: to the last run if only
// this endpoint holds it, else as a new node.
func (t *tree) grow(path []step, slot uint32, blocks []uint64) []step {
	var parent *node
	depth := uint32(0)
	if last := len(path) - 1; last >= 0 {
		parent, depth = path[last].node, path[last].to
		if int(depth) == len(blocks) {
			return path
		}
		if depth == parent.end() && len(parent.holds) == 1 && parent.holds[0].slot == slot {
			t.resize(parent, len(blocks)-int(parent.depth))
			copy(parent.run[depth-parent.depth:], blocks[depth:])
			path[last].to = parent.end()
			return path
		}
	}
	n := t.nodes.take()
	t.holds += cap(n.holds)
	n.parent, n.depth = parent, depth
	t.resize(n, len(blocks)-int(depth))
	copy(n.run, blocks[depth:])
	t.edges.put(edge{parent, uint64(depth), n.run[0]}, n)
	return append(path, step{n, n.end()})
}

// resize changes the length of a node's run.
func (t *tree) resize(n *node, blocks int) {
	t.blocks += blocks - len(n.run)
	if old := n.run; blocks > cap(old) || blocks < cap(old)/4 {
		n.run = t.runs.take(blocks)
		copy(n.run, old)
		t.runs.give(old)
	}
	n.run = n.run[:blocks]
}

// addHold inserts an empty hold at an index.
func (t *tree) addHold(n *node, at int, slot, to uint32) {
	room := cap(n.holds)
	n.holds = slices.Insert(n.holds, at, hold{slot: slot, to: to})
	t.holds += cap(n.holds) - room
}

// shorten removes the end of a run that no endpoint holds, and a node that none holds.
func (t *tree) shorten(n *node) {
	most := n.depth
	for _, h := range n.holds {
		if h.to == n.end() {
			return
		}
		most = max(most, h.to)
	}
	if most > n.depth {
		t.resize(n, int(most-n.depth))
		return
	}
	t.edges.remove(edge{n.parent, uint64(n.depth), n.run[0]})
	t.blocks -= len(n.run)
	t.runs.give(n.run)
	t.holds -= cap(n.holds)
	room := n.holds[:0]
	t.nodes.give(n)
	if cap(room) <= 4 {
		n.holds = room // for who takes the node next
	}
}

// removeHold removes the hold at an index, which has no blocks any more.
func (t *tree) removeHold(n *node, at int) {
	n.holds = slices.Delete(n.holds, at, at+1)
	if cap(n.holds) >= 16 && len(n.holds) <= cap(n.holds)/4 {
		t.holds -= cap(n.holds)
		n.holds = slices.Clone(n.holds)
		t.holds += cap(n.holds)
	}
}
