package precise

import (
	"math"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

// scratch is the state of one Match.
type scratch struct {
	stamp uint32
	marks []mark // by feed; those with another stamp are of earlier matches
	going []going
	runs  []uint32 // of the going feeds with windows, maxGroups for each
}

// mark is how much of the prompt a feed holds.
type mark struct {
	stamp uint32
	saved float64 // in blocks
}

// going is a feed for which no gap has been found yet.
type going struct {
	feed  *Feed
	mask  uint32
	runs  int32   // index of its runs in scratch; negative: it has no windows
	saved float64 // blocks up to the current place
	best  float64 // blocks up to the last place from which its engine could continue
}

func (s *scratch) begin(feeds int) {
	if len(s.marks) < feeds {
		s.marks = make([]mark, feeds+feeds/4)
		s.stamp = 0
	}
	s.stamp++
	if s.stamp == 0 {
		clear(s.marks)
		s.stamp = 1
	}
	s.going, s.runs = s.going[:0], s.runs[:0]
}

// Match implements [endpick.Matcher]: it sets PrefixTokens of every candidate to what
// its engine would not have to compute. For endpoints whose engines report nothing,
// and for prompts of which only the text is known, it uses the approximate index; for
// partial knowledge, the better of the two.
func (x *Index) Match(req *endpick.Request, candidates []endpick.Candidate) {
	x.approx.Match(req, candidates)
	if !req.Exact || req.TokensPerBlock() != prefix.BlockTokens {
		return
	}
	s := x.scratch.Get().(*scratch)
	x.mu.Lock()
	x.routed.expire(req.Now())
	x.collect(s, req.Blocks)
	most := req.InputTokens
	if most <= 0 {
		most = int(min(int64(len(req.Blocks))*prefix.BlockTokens, math.MaxInt32))
	}
	most = max(most-1, 0)
	for i := range candidates {
		c := &candidates[i]
		e := x.endpoints.Find(c.Ref)
		if e == nil {
			continue
		}
		knows := e.knows()
		if knows == Nothing {
			continue
		}
		saved := 0.0
		for _, f := range e.feeds {
			if m := s.marks[f.number]; m.stamp == s.stamp {
				saved = max(saved, m.saved)
			}
		}
		tokens := int(min(saved*prefix.BlockTokens, float64(most)))
		if knows == Partial {
			c.PrefixTokens = max(tokens, c.PrefixTokens)
			c.EvictedTokens = min(c.EvictedTokens, c.PrefixTokens-tokens)
			continue
		}
		c.PrefixTokens, c.EvictedTokens = tokens, 0
	}
	x.mu.Unlock()
	x.scratch.Put(s)
}

// collect marks every feed that holds a head of the prompt. It goes along the prompt
// in stretches that the same feeds hold.
func (x *Index) collect(s *scratch, blocks []uint64) {
	s.begin(len(x.feeds))
	set, from := uint32(0), 0
	for at, key := range blocks {
		id, ok := x.store.keys[key]
		if !ok {
			blocks = blocks[:at]
			break
		}
		n := x.store.at(id)
		switch {
		case at == 0:
			x.start(s, n.set)
		case n.set != set:
			s.pass(x, from, at)
			s.narrow(x, n.set)
			from = at
		}
		set = n.set
		if len(s.going) == 0 {
			return
		}
	}
	s.pass(x, from, len(blocks))
	for i := range s.going {
		s.leave(&s.going[i])
	}
}

// start begins with the feeds that hold the first block, and those whose engines
// don't need it.
func (x *Index) start(s *scratch, set uint32) {
	members := x.store.sets.all[set].members
	for _, m := range members {
		f := x.feeds[m.feed()]
		g := going{feed: f, mask: m.mask(), runs: -1}
		if f.windowed() || x.value(f, g.mask) == 0 {
			continue
		}
		s.add(g)
	}
	if x.windowed == 0 {
		return
	}
	for _, f := range x.feeds {
		if f != nil && f.windowed() {
			s.add(going{feed: f, mask: x.store.sets.mask(set, f.number), runs: -1})
		}
	}
}

func (s *scratch) add(g going) {
	if g.feed.hybrid() {
		g.runs = int32(len(s.runs))
		s.runs = append(s.runs, make([]uint32, maxGroups)...)
	}
	s.going = append(s.going, g)
}

// hybrid reports whether some layers look back over part of the prompt only.
func (f *Feed) hybrid() bool { return f.count > 0 && f.full != 1<<f.count-1 }

// value is the share of a block's computation that a feed saves; 0: it does not hold the block.
func (x *Index) value(f *Feed, mask uint32) float64 {
	switch {
	case mask&routedBit != 0, f.full != 0 && mask&f.full == f.full:
		return 1
	case f.windowed():
		return 1 // only the windows need it
	}
	return x.saved[mask&tiersMask>>maxGroups<<1]
}

// narrow moves on to a stretch that another set of feeds holds.
func (s *scratch) narrow(x *Index, set uint32) {
	members := x.store.sets.all[set].members
	on := s.going[:0]
	for _, g := range s.going {
		// Members are ordered by feed, and so are most of the going.
		for len(members) > 0 && members[0].feed() < g.feed.number && !g.feed.windowed() {
			members = members[1:]
		}
		switch {
		case g.feed.windowed():
			g.mask = x.store.sets.mask(set, g.feed.number)
		case len(members) > 0 && members[0].feed() == g.feed.number:
			g.mask = members[0].mask()
		default:
			g.mask = 0
		}
		if x.value(g.feed, g.mask) == 0 {
			s.leave(&g)
			continue
		}
		on = append(on, g)
	}
	s.going = on
}

// pass goes over a stretch of blocks.
func (s *scratch) pass(x *Index, from, to int) {
	for i := range s.going {
		g := &s.going[i]
		f := g.feed
		value := x.value(f, g.mask)
		// The last place in the stretch at which an engine block ends.
		end := to
		if f.grain > prefix.BlockTokens {
			end = to * prefix.BlockTokens / f.grain * f.grain / prefix.BlockTokens
		}
		// It is before the stretch if it has been examined already, and at its start if
		// the engine block ends within the first block.
		if end >= from && end > 0 && s.open(g, from, end) {
			g.best = g.saved + value*float64(end-from)
		}
		g.saved += value * float64(to-from)
		if g.runs >= 0 {
			s.run(g, uint32(to-from))
		}
	}
}

// open reports whether the engine could continue from a place in the stretch, or at
// its start.
func (s *scratch) open(g *going, from, end int) bool {
	if g.runs < 0 {
		return true
	}
	for i := range g.feed.groups[:g.feed.count] {
		need, run := g.feed.groups[i].need, int(s.runs[int(g.runs)+i])
		if end > from {
			if !g.has(i) {
				run = 0
			} else {
				run += end - from
			}
		}
		if run < min(end, need) {
			return false
		}
	}
	return true
}

// has reports whether the layers of a group have a block, or can load it.
func (g *going) has(group int) bool { return g.mask>>group&1 != 0 || g.mask&(routedBit|tiersMask) != 0 }

// run extends the gapless run of each window.
func (s *scratch) run(g *going, blocks uint32) {
	for i := range g.feed.groups[:g.feed.count] {
		n := &s.runs[int(g.runs)+i]
		if g.has(i) {
			*n += blocks
		} else {
			*n = 0
		}
	}
}

// leave marks a feed with what it holds.
func (s *scratch) leave(g *going) {
	if g.best > 0 {
		s.marks[g.feed.number] = mark{s.stamp, g.best}
	}
}
