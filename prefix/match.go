package prefix

import (
	"math"

	"github.com/endpick/endpick"
)

// scratch collects how many blocks each endpoint holds during one Match.
type scratch struct {
	stamp uint32 // marks with another stamp are of earlier matches
	marks []mark // by slot
}

type mark struct {
	stamp      uint32
	generation uint32
	depth      uint32
}

func (s *scratch) begin(slots int) {
	if len(s.marks) < slots {
		s.marks = make([]mark, slots+slots/4)
		s.stamp = 0
	}
	s.stamp++
	if s.stamp == 0 {
		clear(s.marks)
		s.stamp = 1
	}
}

// Match implements [endpick.Matcher]: it sets PrefixTokens of every candidate,
// to 0 if it holds nothing. A prompt of unknown length is assumed to be as
// long as its blocks.
func (x *Index) Match(req *endpick.Request, candidates []endpick.Candidate) {
	s := x.scratch.Get().(*scratch)
	x.collect(s, req.Blocks)

	block := req.Block()
	most := req.InputTokens
	if most <= 0 {
		most = int(min(float64(len(req.Blocks))*block, math.MaxInt32))
	}
	most = max(most-1, 0)
	depth, tokens := uint32(0), 0
	for i := range candidates {
		c := &candidates[i]
		c.PrefixTokens = 0
		if int64(c.Ref.Slot) >= int64(len(s.marks)) {
			continue
		}
		m := s.marks[c.Ref.Slot]
		if m.stamp != s.stamp || m.generation != c.Ref.Generation {
			continue
		}
		if m.depth != depth {
			depth, tokens = m.depth, int(min(float64(m.depth)*block, float64(most)))
		}
		c.PrefixTokens = tokens
	}
	x.scratch.Put(s)
}

// collect marks every endpoint that holds the beginning of the prompt. An
// endpoint that holds a node also holds the way to it, so only those that leave
// the way at a node are marked there: each is marked once, and a node costs the
// search for those that leave.
func (x *Index) collect(s *scratch, blocks []uint64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	s.begin(len(x.generations))
	var last *node
	id, depth := uint32(0), uint32(0)
	for int(depth) < len(blocks) {
		id = x.trie.child(id, depth, blocks[depth])
		if id == 0 {
			break
		}
		n := x.trie.nodes.at(id)
		if last != nil {
			x.markLeavers(s, last, n, depth)
		}
		depth += uint32(commonBlocks(n.run.all(), blocks[depth:]))
		last = n
	}
	if last != nil {
		x.mark(s, last.holders.all(), depth)
	}
}

// markLeavers marks the holders of n that don't hold its child c, at which the
// prompt leaves n. Both lists have the same order, so the first difference is
// found by bisection.
func (x *Index) markLeavers(s *scratch, n, c *node, depth uint32) {
	all, stay := n.holders.all(), c.holders.all()
	for len(all) > len(stay) {
		lo, hi := 0, len(stay)
		for lo < hi {
			mid := int(uint(lo+hi) / 2)
			if all[mid].slot == stay[mid].slot {
				lo = mid + 1
			} else {
				hi = mid
			}
		}
		leavers := 1
		if lo < len(stay) {
			for all[lo+leavers].slot < stay[lo].slot {
				leavers++
			}
		} else {
			leavers = len(all) - lo
		}
		x.mark(s, all[lo:lo+leavers], depth)
		all, stay = all[lo+leavers:], stay[lo:]
	}
}

// mark marks the holders of a node that the prompt leaves at this depth.
func (x *Index) mark(s *scratch, holders []holder, depth uint32) {
	for _, h := range holders {
		s.marks[h.slot] = mark{
			stamp:      s.stamp,
			generation: x.generations[h.slot],
			depth:      min(h.to, depth),
		}
	}
}
