package precise

import (
	"cmp"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

// stretch is a part of a prompt whose blocks the same feeds hold.
type stretch struct {
	*node     // one of its blocks
	to    int // blocks of the prompt up to its end
	next  int // a guess at the place of the next feed, because most come in order
}

func (s *stretch) mask(feed uint32) (mask uint32) {
	m := s.members
	if s.next > 0 && m[s.next-1].feed() >= feed || s.next < len(m) && m[s.next].feed() < feed {
		s.next, mask = s.find(feed)
	} else if s.next < len(m) && m[s.next].feed() == feed {
		mask = m[s.next].mask()
	}
	if mask != 0 {
		s.next++
	}
	return mask
}

// Match implements [endpick.Matcher]: it sets PrefixTokens of every candidate to what
// its engine would not have to compute. For endpoints whose engines report nothing,
// and for prompts of which only the text is known, it uses the approximate index; for
// partial knowledge, the better of the two. What requests under way need counts in any case.
func (x *Index) Match(req *endpick.Request, candidates []endpick.Candidate) {
	if !req.Exact || req.TokensPerBlock() != prefix.BlockTokens {
		x.approx.Match(req, candidates)
		return
	}
	most := max(cmp.Or(max(req.InputTokens, 0), len(req.Blocks)*prefix.BlockTokens)-1, 0)
	path := x.paths.Get().(*[]stretch)
	defer x.paths.Put(path)
	x.mu.RLock()
	defer x.mu.RUnlock()
	x.approx.MatchUnderWay(req, candidates, func(ref endpick.EndpointRef) bool { return x.knows(ref) == Whole })
	*path = x.store.walk((*path)[:0], req.Blocks)
	for i := range candidates {
		if c := &candidates[i]; x.knows(c.Ref) != Nothing {
			saved := min(x.most(x.endpoints.Find(c.Ref), *path)*prefix.BlockTokens, float64(most))
			c.PrefixTokens = max(c.PrefixTokens, int(saved))
		}
	}
}

// walk appends to path the stretches of a prompt's known blocks.
func (s *store) walk(path []stretch, blocks []uint64) []stretch {
	for i, key := range blocks {
		n := s.nodes[key]
		if n == nil {
			break
		}
		if i == 0 || n.sum != path[len(path)-1].sum {
			path = append(path, stretch{node: n})
		}
		path[len(path)-1].to = i + 1
	}
	return path
}

// most is how many blocks of a prompt an endpoint saves.
func (x *Index) most(e *endpoint, path []stretch) (saved float64) {
	for _, f := range e.feeds {
		saved = max(saved, x.saves(f, path))
	}
	return saved
}

// saves returns how many blocks of a prompt a feed's engine need not compute. Places are
// counted in blocks.
func (x *Index) saves(f *Feed, path []stretch) (best float64) {
	var gaps [maxGroups]int // up to which each group has none
	sum, from := 0.0, 0
	for i := range path {
		s := &path[i]
		mask := s.mask(f.number)
		value := x.value(f, mask)
		if value == 0 {
			break
		}
		// The last place in the stretch at which an engine's block ends. It is before the
		// stretch if it has been examined already, and at its start if the engine's block
		// ends within the first block.
		end := s.to
		if f.grain > prefix.BlockTokens {
			end = s.to * prefix.BlockTokens / f.grain * f.grain / prefix.BlockTokens
		}
		open := end >= from && end > 0
		for i := range f.groups[:f.count] {
			gap := gaps[i]
			if mask>>i&1 == 0 && mask&tiersMask == 0 { // nor can it be loaded
				gaps[i] = s.to
				if end > from {
					gap = end
				}
			}
			// The engine can continue where all of its layers can.
			open = open && end-gap >= min(end, f.groups[i].need)
		}
		if open {
			best = sum + value*float64(end-from)
		}
		sum += value * float64(s.to-from)
		from = s.to
	}
	return best
}

// value is the share of a block's computation that a feed saves; 0: it does not hold the block.
func (x *Index) value(f *Feed, mask uint32) float64 {
	if mask&f.full == f.full && f.count > 0 {
		return 1 // if there are only windows, full is zero, and they say what is needed
	}
	return x.saved[mask&tiersMask>>maxGroups<<1]
}
