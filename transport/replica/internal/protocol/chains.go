package protocol

import "slices"

// chains knows what precedes each block. Hashes are chained, so one stands for a block
// and everything before it: for somebody who knows the block, one hash says the whole
// head.
//
// It has two generations: when the younger is full it becomes the older, and whatever of
// that has not been used since is forgotten.
type chains struct {
	most       int // blocks per generation
	young, old map[uint64]link
}

// link is the block before a block. A block at depth 1 begins a prompt.
type link struct {
	parent uint64
	depth  uint32
}

func newChains(blocks int) *chains {
	return &chains{most: max(blocks/2, 2*maxChain), young: map[uint64]link{}, old: map[uint64]link{}}
}

func (c *chains) find(hash uint64) (link, bool) {
	l, ok := c.young[hash]
	if !ok {
		l, ok = c.old[hash]
	}
	return l, ok
}

// add uses the blocks of a prompt, head first, and returns how many of them, from the
// head, were known. What is known about a block is not changed: only one other can have
// come before it, as long as nobody lies.
func (c *chains) add(blocks []uint64) (known int) {
	whole, parent := true, uint64(0)
	for i, hash := range blocks {
		l, ok := c.young[hash]
		if !ok {
			if l, ok = c.old[hash]; !ok {
				l = link{parent, uint32(i + 1)}
			}
			if len(c.young) >= c.most {
				c.old, c.young = c.young, make(map[uint64]link, c.most)
			}
			c.young[hash] = l
		}
		if whole = whole && ok && l == (link{parent, uint32(i + 1)}); whole {
			known++
		}
		parent = hash
	}
	return known
}

// head appends to dst the blocks that end with a hash at a depth; false if one of them is
// not known.
func (c *chains) head(dst []uint64, leaf uint64, depth int) ([]uint64, bool) {
	if depth < 0 || depth > maxChain {
		return dst, false
	}
	start := len(dst)
	dst = slices.Grow(dst, depth)[:start+depth]
	for at := depth; at > 0; at-- {
		l, ok := c.find(leaf)
		if !ok || int(l.depth) != at {
			return dst[:start], false
		}
		dst[start+at-1] = leaf
		leaf = l.parent
	}
	return dst, true
}

// tail returns the blocks that end with a hash at a depth, from the last one on that is in a set, with all
// before it, and how many are in it; false if one is not known.
func (c *chains) tail(leaf uint64, depth int, set map[uint64]bool) (blocks []uint64, known int, ok bool) {
	for known = depth; known > 0; known-- {
		l, ok := c.find(leaf)
		if !ok || int(l.depth) != known {
			return nil, 0, false
		}
		blocks = append(blocks, leaf)
		if set[leaf] {
			break
		}
		leaf = l.parent
	}
	slices.Reverse(blocks)
	return blocks, known, true
}

func (c *chains) len() int { return len(c.young) + len(c.old) }
