package prefix

import (
	"math"
	"slices"

	"github.com/endpick/endpick"
)

// scratch collects how many blocks each endpoint holds during one Match.
type scratch struct {
	depths []uint32 // by slot
	open   []uint32 // by slot: of these blocks, what requests under way need
	path   []step   // of the prompt
}

// Match implements [endpick.Matcher]: it sets PrefixTokens of every candidate,
// to 0 if it holds nothing. A prompt of unknown length is assumed to be as
// long as its blocks.
func (x *Index) Match(req *endpick.Request, candidates []endpick.Candidate) {
	x.MatchUnderWay(req, candidates, nil)
}

// MatchUnderWay is Match, but of endpoints for which known returns true it counts only what
// requests under way need: the caller knows what else they hold. Nil: of none.
func (x *Index) MatchUnderWay(req *endpick.Request, candidates []endpick.Candidate, known func(endpick.EndpointRef) bool) {
	block := req.TokensPerBlock()
	most := req.InputTokens
	if most <= 0 {
		most = int(min(float64(len(req.Blocks))*block, math.MaxInt32))
	}
	most = max(most-1, 0)
	s := x.scratch.Get().(*scratch)
	x.mu.RLock()
	defer x.mu.RUnlock()
	x.collect(s, req.Blocks, known != nil)
	for i := range candidates {
		c := &candidates[i]
		c.PrefixTokens = 0
		if int64(c.Ref.Slot) >= int64(len(s.depths)) {
			continue
		}
		depth := s.depths[c.Ref.Slot]
		if known != nil && depth > 0 && known(c.Ref) {
			depth = s.open[c.Ref.Slot]
		}
		if depth > 0 && x.caches.Find(c.Ref) != nil {
			c.PrefixTokens = int(min(float64(depth)*block, float64(most)))
		}
	}
	x.scratch.Put(s)
}

// collect marks every endpoint that holds the beginning of the prompt with how much it
// holds, and if asked how much requests under way need. Who holds a node also holds the way to
// it, so where as many hold the next node, the same ones do.
func (x *Index) collect(s *scratch, blocks []uint64, underWay bool) {
	s.depths = slices.Grow(s.depths[:0], len(x.slots))[:len(x.slots)]
	s.open = slices.Grow(s.open[:0], len(x.slots))[:len(x.slots)]
	clear(s.depths)
	clear(s.open)
	s.path = x.tree.walk(s.path[:0], blocks)
	for i, at := range s.path {
		if !underWay && i+1 < len(s.path) && len(s.path[i+1].holds) == len(at.holds) {
			continue
		}
		for _, h := range at.holds {
			s.depths[h.slot] = min(h.to, at.to)
			for p := h.head; underWay && p != nil && p.start < at.to && p.users > 0; p = p.down {
				s.open[h.slot] = min(h.end(p), at.to)
			}
		}
	}
}
