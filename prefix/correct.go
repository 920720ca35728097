package prefix

import "github.com/endpick/endpick"

// correct compares what an engine took from its cache with what the index
// expected when the request was routed, and moves the capacity that is assumed
// for the endpoint.
//
// The engine reports fewer blocks: it had evicted the missing ones, and by now
// it has them again. Engines evict the least recently used blocks first, so
// one that lacks a block has room for fewer blocks than were used since that
// one. With D blocks used no longer ago than the last matched one, which is
// the oldest of the match, and M blocks missing at the end of the match, the
// first missing one had at most D − M blocks used after it. That is the new
// capacity, but at least three quarters of the old one, because a single
// report may have another cause (a restart, a flush), and at least this
// request, which the engine holds now.
//
// The engine reports what was expected, and the match was as old as three
// quarters of the capacity: there is at least this much room, and maybe more. The
// capacity rises by a sixteenth; so it does when the engine had more than was expected.
// A match on blocks that were just used proves nothing about room.
//
// The report is not used if another request was still in the prefill of the
// matched blocks, and a shortage below 8 blocks and an eighth of the match
// does not count: engines round down to blocks of their own, and the tokens of
// text blocks are a guess.
func (x *Index) correct(l *lease, req *endpick.Request, o *endpick.Outcome) {
	s := x.server(l.server)
	if s == nil || !o.HasCachedTokens || l.doubtful {
		return
	}
	tokens := float64(o.CachedTokens)
	if o.InputTokens > 0 && req.InputTokens > 0 {
		// The prompt's length was a guess; so was that of its head.
		tokens *= float64(req.InputTokens) / float64(o.InputTokens)
	}
	cached := int(min(max(tokens/req.Block(), 0), float64(l.blocks)))
	slack := 8 + l.matched/8
	missing := l.matched - cached
	capacity := s.capacity()
	switch {
	case missing > slack:
		next := max(l.distance-missing, capacity-capacity/4, l.blocks)
		if next < capacity {
			s.learned = next
			s.lowered++
			x.evict(s, next)
		}
	case -missing > slack, l.matched > 0 && l.distance >= capacity*3/4:
		if s.learned == 0 {
			return
		}
		s.learned += max(s.learned/16, 1)
		if s.learned >= s.bound {
			s.learned = 0
		}
	}
}
