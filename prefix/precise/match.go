package precise

import (
	"math"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

// scratch is the state of one Match.
type scratch struct {
	stamp uint32
	marks []mark // by feed; those with another stamp are from earlier matches
	going []going
	runs  []uint32 // of going feeds with windows, maxGroups for each
}

// mark is what a feed has of the prompt.
type mark struct {
	stamp uint32
	saved float64 // blocks
}

// going is a feed of which no gap was found yet.
type going struct {
	feed  *Feed
	mask  uint32
	runs  int32   // where its runs are in scratch; negative: it has no windows
	saved float64 // blocks up to where it has come
	best  float64 // blocks up to the last place from which its engine could go on
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
// its engine would not have to compute, 0 where that is nothing. For endpoints whose
// engines say nothing, and for prompts of which only the text is known, it is what the
// approximate index expects; where only a part is known, the better of the two.
func (x *Index) Match(req *endpick.Request, candidates []endpick.Candidate) {
	x.approx.Match(req, candidates)
	if !req.Exact || req.Block() != prefix.BlockTokens {
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
			tokens = max(tokens, c.PrefixTokens)
		}
		c.PrefixTokens = tokens
	}
	x.mu.Unlock()
	x.scratch.Put(s)
}

// collect marks every feed that has a head of the prompt. It goes along the prompt by
// stretches that are held alike.
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

// start begins with those who have the first block, and those whose engines can do
// without.
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

// hybrid reports whether some layers look back a part of the way only.
func (f *Feed) hybrid() bool { return f.count > 0 && f.full != 1<<f.count-1 }

// value is what a block saves of computing it; 0: it is not held.
func (x *Index) value(f *Feed, mask uint32) float64 {
	switch {
	case mask&routedBit != 0, f.full != 0 && mask&f.full == f.full:
		return 1
	case f.windowed():
		return 1 // it needs none but those of the windows
	}
	return x.worth[mask&tiersMask>>maxGroups<<1]
}

// narrow goes on to a stretch that others hold.
func (s *scratch) narrow(x *Index, set uint32) {
	members := x.store.sets.all[set].members
	kept := s.going[:0]
	for _, g := range s.going {
		// Members are in the order of feeds, and so are most of those going.
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
		kept = append(kept, g)
	}
	s.going = kept
}

// pass goes over a stretch of blocks.
func (s *scratch) pass(x *Index, from, to int) {
	for i := range s.going {
		g := &s.going[i]
		f := g.feed
		value := x.value(f, g.mask)
		// The last place of the stretch at which a block of the engine ends.
		end := to
		if f.grain > prefix.BlockTokens {
			end = to * prefix.BlockTokens / f.grain * f.grain / prefix.BlockTokens
		}
		// It is before the stretch if it has been seen, and at its start if it ends within
		// the first block.
		if end >= from && end > 0 && s.open(g, from, end) {
			g.best = g.saved + value*float64(end-from)
		}
		g.saved += value * float64(to-from)
		if g.runs >= 0 {
			s.run(g, uint32(to-from))
		}
	}
}

// open reports whether the engine could go on from a place in the stretch, or at its
// start.
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

// has reports whether a block is there for the layers of a group, or can be loaded.
func (g *going) has(group int) bool { return g.mask>>group&1 != 0 || g.mask&(routedBit|tiersMask) != 0 }

// run counts the blocks without a gap of each window.
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

// leave marks a feed with what it has.
func (s *scratch) leave(g *going) {
	if g.best > 0 {
		s.marks[g.feed.number] = mark{s.stamp, g.best}
	}
}

// Holding is what one endpoint has of the head of a prompt.
type Holding struct {
	Knows Knowledge
	// Blocks are those of the head by the fastest tier that has them.
	Blocks [Tiers]int
	// Routed are the blocks of the head that are only expected.
	Routed int
	// Saved is what the head is worth, in blocks; less than their number where blocks
	// have to be loaded, or where the engine can't go on from the end of the head.
	Saved float64
}

// Lookup says what an endpoint has of the blocks of a prompt, which were cut from token
// ids: of the feed that saves most.
func (x *Index) Lookup(blocks []uint64, ref endpick.Ref) (h Holding) {
	s := x.scratch.Get().(*scratch)
	defer x.scratch.Put(s)
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.endpoints.Find(ref)
	if e == nil {
		return h
	}
	h.Knows = e.knows()
	x.collect(s, blocks)
	var most *Feed
	for _, f := range e.feeds {
		if m := s.marks[f.number]; m.stamp == s.stamp && m.saved > h.Saved {
			h.Saved, most = m.saved, f
		}
	}
	if most == nil {
		return h
	}
	for _, key := range blocks {
		id, ok := x.store.keys[key]
		if !ok {
			break
		}
		mask := x.store.sets.mask(x.store.at(id).set, most.number)
		switch {
		case most.full != 0 && mask&most.full == most.full, most.windowed() && mask&groupsMask != 0:
			h.Blocks[GPU]++
		case mask&routedBit != 0:
			h.Routed++
		case x.value(most, mask) == 0:
			return h
		case mask&tiersMask != 0: // if not, its engine can do without
			h.Blocks[x.fastest(mask)]++
		}
	}
	return h
}

// fastest is the tier below GPU memory from which a block is loaded at the least cost.
func (x *Index) fastest(mask uint32) Tier {
	best := CPU
	for t := CPU; t < Tiers; t++ {
		if mask>>(tierShift+uint32(t))&1 != 0 && (mask>>(tierShift+uint32(best))&1 == 0 || x.worth[1<<t] > x.worth[1<<best]) {
			best = t
		}
	}
	return best
}
