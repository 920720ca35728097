package prefix

import (
	"math"
	"slices"

	"github.com/endpick/endpick"
)

// scratch collects how many blocks each endpoint holds during one Match.
type scratch struct {
	depths []uint32 // by slot
	path   []step   // of the prompt
}

// Match implements [endpick.Matcher]: it sets PrefixTokens of every candidate,
// to 0 if it holds nothing. Where an engine reports how full its memory is, it holds no more than
// fits into what is free, besides what requests under way need. A prompt of unknown length is
// assumed to be as long as its blocks.
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
	x.collect(s, req.Blocks)
	for i := range candidates {
		c := &candidates[i]
		c.PrefixTokens = 0
		at := x.caches.Find(c.Ref)
		if at == nil || s.depths[c.Ref.Slot] == 0 {
			continue
		}
		depth := s.depths[c.Ref.Slot]
		if known != nil && known(c.Ref) {
			depth = inUse(s.path, c.Ref.Slot)
		}
		c.PrefixTokens = int(min(float64(depth)*block, float64(most)))
		if free := (*at).free(c, block); free < float64(c.PrefixTokens) {
			c.PrefixTokens = min(c.PrefixTokens, int(free+block*float64(inUse(s.path, c.Ref.Slot))))
		}
	}
	x.scratch.Put(s)
}

// collect marks every endpoint that holds the beginning of the prompt with how much it
// holds. Who holds a node also holds the way to it, so where as many hold the next node, the
// same ones do.
func (x *Index) collect(s *scratch, blocks []uint64) {
	s.depths = slices.Grow(s.depths[:0], len(x.slots))[:len(x.slots)]
	clear(s.depths)
	s.path = x.tree.walk(s.path[:0], blocks)
	for i, at := range s.path {
		if i+1 < len(s.path) && len(s.path[i+1].holds) == len(at.holds) {
			continue
		}
		for _, h := range at.holds {
			s.depths[h.slot] = min(h.to, at.to)
		}
	}
}

// inUse is how much of a path requests under way at an endpoint need.
func inUse(path []step, slot uint32) (depth uint32) {
	for _, at := range path {
		h := at.hold(slot)
		for p := range h.until(at.to) {
			if p.users == 0 {
				return depth
			}
			depth = min(h.end(p), at.to)
		}
	}
	return depth
}
