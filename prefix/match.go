package prefix

import (
	"math"
	"slices"

	"github.com/endpick/endpick"
)

// scratch collects how many blocks each endpoint holds during one Match.
type scratch struct {
	stamp uint32 // marks with another stamp are of earlier matches
	marks []mark // by slot
	path  []step // of the prompt
}

type mark struct {
	stamp uint32
	depth uint32
	slot
}

// slot is what Match reads of each endpoint that holds anything.
type slot struct {
	generation uint32
	spare      int32 // blocks that responses may need without evicting anything
}

// note updates what Match reads of an endpoint. When others make it give way, it has more
// to spare than is noted.
func (x *Index) note(s *server, at uint32) {
	spare := int32(math.MaxInt32)
	if s.whole || s.trust.learned > 0 {
		spare = int32(min(max(s.capacity()-s.held-s.pending-s.kept, -1), math.MaxInt32))
	}
	x.slots[at].spare = spare
}

func (s *scratch) begin(slots int) {
	if len(s.marks) < slots {
		s.marks = make([]mark, slots+slots/4)
		s.stamp = 0
	}
	s.path = s.path[:0]
	s.stamp++
	if s.stamp == 0 {
		clear(s.marks)
		s.stamp = 1
	}
}

// Match implements [endpick.Matcher]: it sets PrefixTokens and EvictedTokens of every
// candidate, to 0 if it holds nothing. A prompt of unknown length is assumed to be as
// long as its blocks.
func (x *Index) Match(req *endpick.Request, candidates []endpick.Candidate) {
	block := req.TokensPerBlock()
	most := req.InputTokens
	if most <= 0 {
		most = int(min(float64(len(req.Blocks))*block, math.MaxInt32))
	}
	most = max(most-1, 0)
	tokens := func(depth uint32) int { return int(min(float64(depth)*block, float64(most))) }

	s := x.scratch.Get().(*scratch)
	x.mu.RLock()
	defer x.mu.RUnlock()
	x.collect(s, req.Blocks)
	depth, held := uint32(0), 0
	for i := range candidates {
		c := &candidates[i]
		c.PrefixTokens, c.EvictedTokens = 0, 0
		if int64(c.Ref.Slot) >= int64(len(s.marks)) {
			continue
		}
		m := s.marks[c.Ref.Slot]
		if m.stamp != s.stamp || m.generation != c.Ref.Generation {
			continue
		}
		if m.depth != depth {
			depth, held = m.depth, tokens(m.depth)
		}
		c.PrefixTokens = held
		if float64(c.InFlight.OutputTokens) > float64(m.spare)*block {
			c.EvictedTokens = held - tokens(x.remaining(c, s.path, m.depth, block))
		}
	}
	x.scratch.Put(s)
}

// remaining returns the depth up to which an endpoint probably still has the blocks that it
// holds up to depth. Its engine may need room for others that do not count as held: prompts
// in prefill or before it, those that are kept, and responses.
//
// Blocks that no lease vouches for follow all others of a prompt, and were not used more
// recently than those before them. So all of them from the first one that is gone are.
func (x *Index) remaining(c *endpick.Candidate, path []step, depth uint32, block float64) uint32 {
	s, slot := x.servers.Find(c.Ref), c.Ref.Slot
	if s == nil {
		return depth
	}
	unseen := s.unseen(c, block)
	if s.held+unseen <= s.capacity() {
		return depth
	}
	room := s.capacity() - unseen
	first, _ := slices.BinarySearchFunc(path, room, func(p step, room int) int {
		n := x.trie.nodes.at(p.node)
		at, ok := n.holder(slot)
		if !ok {
			return 1
		}
		if en, _ := x.gone(s, &n.holders.all()[at], min(depth, p.to), room); en != nil {
			return 1
		}
		return -1
	})
	if first == len(path) {
		return depth
	}
	n := x.trie.nodes.at(path[first].node)
	at, ok := n.holder(slot)
	if !ok {
		return depth
	}
	h, to := &n.holders.all()[at], min(depth, path[first].to)
	en, over := x.gone(s, h, to, room)
	if en == nil {
		return depth
	}
	end := x.endIn(en, h) // an engine evicts the end first
	return min(end-min(uint32(over), end-en.start), to)
}

// gone returns the first entry of a hold that is not all in a cache with so much room, and
// how much of it is not; nil if all are.
func (x *Index) gone(s *server, h *holder, depth uint32, room int) (*entry, int) {
	for id := h.head; id != 0; {
		en := x.entries.at(id)
		if en.start >= depth {
			break
		}
		if en.sure() && en.vouchers == 0 {
			if over := s.ages.needed(en.epoch) - room; over > 0 {
				return en, over
			}
		}
		id = en.down
	}
	return nil, 0
}

// unseen is how many blocks an engine needs that do not count as held.
func (s *server) unseen(c *endpick.Candidate, block float64) int {
	return s.pending + s.kept + int(min(float64(max(c.InFlight.OutputTokens, 0))/block, math.MaxInt32/4))
}

// collect marks every endpoint that holds the beginning of the prompt. An
// endpoint that holds a node also holds the way to it, so only those that leave
// the way at a node are marked there: each is marked once, and a node costs the
// search for those that leave.
func (x *Index) collect(s *scratch, blocks []uint64) {
	s.begin(len(x.slots))
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
		s.path = append(s.path, step{id, depth})
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
			stamp: s.stamp,
			depth: min(h.to, depth),
			slot:  x.slots[h.slot],
		}
	}
}
