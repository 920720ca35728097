package prefix

import (
	"math"
	"slices"
	"sort"

	"github.com/endpick/endpick"
)

// scratch collects how many blocks each endpoint holds during one Match.
type scratch struct {
	marks []mark // by slot
	path  []step // of the prompt
}

type mark struct {
	depth uint32 // 0: it holds nothing
	slot
}

// slot is what Match reads of each endpoint that holds anything.
type slot struct {
	generation uint32
	spare      int32 // blocks that responses may need without evicting anything
}

// publish updates what Match reads of an endpoint. When others make it give way, it has
// more to spare than is published.
func (x *Index) publish(c *cache) {
	spare := math.MaxInt32
	if c.size.whole || c.trust.learned > 0 {
		spare = max(c.capacity()-c.held-c.pending-c.retained, -1)
	}
	x.slots[c.ref.Slot].spare = int32(min(spare, math.MaxInt32))
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
		if m.depth == 0 || m.generation != c.Ref.Generation {
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
// holds up to depth. Its engine may need room for others that do not count as held: pending
// and retained ones, and responses.
//
// Pieces that no open request needs follow all others of a prompt, and were not used more
// recently than those before them. So all of them from the first one that is gone are, but
// an engine evicts the end first of those that were used in the same epoch.
func (x *Index) remaining(c *endpick.Candidate, path []step, depth uint32, block float64) uint32 {
	k := *x.caches.Find(c.Ref)
	room := k.capacity() - k.besides(c, block)
	if k.held <= room {
		return depth
	}
	first := sort.Search(len(path), func(i int) bool {
		p := path[i].hold(c.Ref.Slot).last(path[i].to)
		return p == nil || k.excess(p, room) > 0
	})
	var gone *piece
	end, over := 0, 0
	for _, s := range path[first:] {
		h := s.hold(c.Ref.Slot)
		for p := range h.until(s.to) {
			if gone == nil && k.excess(p, room) > 0 {
				gone, over = p, k.excess(p, room)
			}
			if gone != nil && p.use.epoch == gone.use.epoch {
				end = int(h.end(p))
			}
		}
	}
	if gone == nil {
		return depth
	}
	return uint32(min(max(int(gone.start), end-over), int(depth)))
}

// excess is how many blocks an engine with so much room evicts of those that were used in a
// piece's epoch; not above 0 if the piece stays.
func (k *cache) excess(p *piece, room int) int {
	if p.state != computed || p.users > 0 {
		return 0
	}
	return k.ages.needed(p.use.epoch) - room
}

// besides is how many blocks an engine needs that do not count as held.
func (k *cache) besides(c *endpick.Candidate, block float64) int {
	return k.pending + k.retained + int(min(float64(max(c.InFlight.OutputTokens, 0))/block, math.MaxInt32/4))
}

// collect marks every endpoint that holds the beginning of the prompt with how much it
// holds. Who holds a node also holds the way to it, so where as many hold the next node, the
// same ones do.
func (x *Index) collect(s *scratch, blocks []uint64) {
	s.marks = slices.Grow(s.marks[:0], len(x.slots))[:len(x.slots)]
	clear(s.marks)
	s.path = x.tree.walk(s.path[:0], blocks)
	for i, at := range s.path {
		if i+1 < len(s.path) && len(s.path[i+1].holds) == len(at.holds) {
			continue
		}
		for _, h := range at.holds {
			s.marks[h.slot] = mark{min(h.to, at.to), x.slots[h.slot]}
		}
	}
}
