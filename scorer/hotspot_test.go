package scorer_test

import (
	"slices"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// spot drives a detector by hand.
type spot struct {
	endpick.Filter
	now time.Time
}

func newSpot(config scorer.HotspotConfig) *spot {
	return &spot{scorer.Hotspot(config), time.Unix(100, 0)}
}

// classes are those that it has.
func (s *spot) classes() scorer.Classes { return scorer.ClassesOf(s.Filter) }

func (s *spot) observe(e *endpick.Event) { s.Filter.(endpick.RoutedObserver).Routed(e) }

// blocks are those of a prompt of a thousand tokens that begins with the head
// of a class and is unique after it.
func blocks(class uint64) []uint64 {
	b := make([]uint64, 62)
	for i := range b {
		b[i] = class<<8 + uint64(i)
	}
	return b
}

func (s *spot) prompt(class uint64) endpick.Request {
	return endpick.Request{InputTokens: 1000, Blocks: blocks(class)}.At(s.now, 1, 1)
}

// left passes a request of the class through the filter.
func (s *spot) left(class uint64, cs []endpick.Candidate) (slots []uint32) {
	req := s.prompt(class)
	for _, c := range s.Filter.Filter(&req, slices.Clone(cs)) {
		slots = append(slots, c.Ref.Slot)
	}
	return slots
}

// routed notifies it of requests of the class.
func (s *spot) routed(n int, class uint64, cs []endpick.Candidate) {
	req := s.prompt(class)
	for range n {
		s.observe(&endpick.Event{Request: &req, Candidate: &cs[0], Candidates: cs, Now: s.now})
	}
}

// Four endpoints, the class has half of the requests: x/x̄ = 1. On one endpoint
// |M|/|M̄| = 1/3, on two it is 1.
func TestHotspotWorkedExample(t *testing.T) {
	s := newSpot(scorer.HotspotConfig{})
	cold := candidates(indicators{}, indicators{}, indicators{}, indicators{})
	one := candidates(indicators{h: 992}, indicators{}, indicators{}, indicators{})
	two := candidates(indicators{h: 992}, indicators{h: 992}, indicators{}, indicators{})
	everybody := []uint32{0, 1, 2, 3}

	s.routed(10, 2, cold)
	s.routed(3, 1, one)
	assert.Equal(t, scorer.Classes{Tracked: 1}, s.classes(), "3/10 is not above 1/3")
	s.routed(1, 1, one)
	assert.Equal(t, 1, s.classes().Alarmed, "4/10 is")
	s.routed(2, 1, one)
	assert.Equal(t, everybody, s.left(1, one), "two in a row are not more than 2·|M|")

	// (8 + 5000)·(0 + 1) on M against 1000·1 elsewhere: the streak is broken.
	s.routed(1, 1, candidates(indicators{h: 992, q: 5000}, indicators{}, indicators{}, indicators{}))
	s.routed(2, 1, one)
	assert.Equal(t, everybody, s.left(1, one))
	s.routed(1, 1, one)
	assert.Equal(t, []uint32{1, 2, 3}, s.left(1, one), "three are")
	assert.Equal(t, everybody, s.left(2, one), "other classes go where they like")
	assert.Equal(t, scorer.Classes{Tracked: 1, Alarmed: 1, Hot: 1}, s.classes())

	// 10/10 is not above 2/2: recovered, at once for the filter.
	assert.Equal(t, everybody, s.left(1, two))
	assert.Equal(t, []uint32{1, 2, 3}, s.left(1, one))
	s.routed(1, 2, cold)
	s.routed(1, 1, two)
	assert.Equal(t, everybody, s.left(1, one))
	assert.Equal(t, scorer.Classes{Tracked: 1}, s.classes())
}

func TestHotspotNoAlarm(t *testing.T) {
	for _, tc := range []struct {
		name string
		cs   []endpick.Candidate
		rest int // requests of other classes
	}{
		{"nobody holds the prefix", candidates(indicators{}, indicators{}), 1},
		{"everybody does", candidates(indicators{h: 992}, indicators{h: 992}), 1},
		{"there is no other class", candidates(indicators{h: 992}, indicators{}), 0},
		{"what is held is shorter than the head", candidates(indicators{h: 127}, indicators{}), 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSpot(scorer.HotspotConfig{})
			s.routed(tc.rest, 2, tc.cs)
			s.routed(100, 1, tc.cs)
			assert.Zero(t, s.classes().Alarmed)
			assert.Len(t, s.left(1, tc.cs), 2)
		})
	}
}

func TestHotspotForgetsWithTheWindow(t *testing.T) {
	s := newSpot(scorer.HotspotConfig{})
	cs := candidates(indicators{h: 992}, indicators{}, indicators{}, indicators{})
	s.routed(10, 1<<40, cs[1:])
	s.routed(20, 1, cs)
	require.Len(t, s.left(1, cs), 3)
	s.now = s.now.Add(54 * time.Second)
	s.routed(10, 1<<40, cs[1:])
	assert.Len(t, s.left(1, cs), 3, "20/20")
	s.now = s.now.Add(6 * time.Second)
	assert.Len(t, s.left(1, cs), 4, "the class is a minute old, and gone")
	s.routed(1, 1<<40, cs[1:])
	assert.Zero(t, s.classes())

	s.now = s.now.Add(-time.Hour)
	s.routed(1, 1, cs)
	assert.Equal(t, 1, s.classes().Tracked, "time that goes back counts as now")
}

// Skipped parts of the window are not processed one by one.
func TestHotspotAfterALeapOfTheClock(t *testing.T) {
	leaps := []time.Duration{200 * 365 * 24 * time.Hour}
	for n := range 12 {
		leaps = append(leaps, time.Duration(12+n))
	}
	for _, leap := range leaps {
		s := newSpot(scorer.HotspotConfig{Window: 12}) // parts of a nanosecond
		cs := candidates(indicators{h: 992}, indicators{}, indicators{}, indicators{})
		s.routed(10, 1<<40, cs[1:])
		s.routed(20, 1, cs)
		require.Len(t, s.left(1, cs), 3)
		s.now = s.now.Add(leap)
		assert.Len(t, s.left(1, cs), 4, "%v", leap)
		assert.Zero(t, s.classes().Tracked, "%v", leap)
	}
}

// Space-Saving: a class that displaces another may have had as many requests
// before, so it is not the next to go just because it is new. That counts for
// one window.
func TestHotspotInheritsTheCountOfTheClassInWhosePlaceItComes(t *testing.T) {
	everybody := candidates(indicators{h: 992})
	one := candidates(indicators{h: 992}, indicators{}, indicators{}, indicators{})
	begin := func() *spot {
		s := newSpot(scorer.HotspotConfig{Classes: 2})
		s.routed(2, 1<<40, one[1:])
		s.now = s.now.Add(30 * time.Second)
		s.routed(7, 1, everybody)
		return s
	}
	s := begin()
	s.routed(8, 2, one)
	require.Equal(t, 1, s.classes().Hot)
	s.routed(2, 3, one) // in the place of the first, with 7 and 2 requests
	s.now = s.now.Add(35 * time.Second)
	s.routed(1, 4, one) // in the place of the second, which has 8
	assert.Zero(t, s.classes().Hot)

	s = begin()
	s.routed(9, 2, one)
	s.routed(1, 3, one) // in the place of the first, with 7 and 1 requests
	s.routed(2, 4, one) // in the place of the third, with 8 and 2 requests
	s.routed(1, 5, one) // in the place of the second, which has 9
	assert.Zero(t, s.classes().Hot, "what was inherited is passed on")

	s = begin()
	s.routed(8, 2, everybody)
	s.routed(1, 3, one) // in the place of the first, with 7 and 1 requests
	s.now = s.now.Add(30 * time.Second)
	s.routed(5, 2, one)
	s.routed(1, 3, one)
	require.Equal(t, 1, s.classes().Hot)
	s.now = s.now.Add(30 * time.Second)
	s.routed(1, 4, one) // in the place of the third, which is down to one request
	assert.Equal(t, 1, s.classes().Hot)

	s = newSpot(scorer.HotspotConfig{Classes: 1})
	s.routed(2, 9, one[1:])
	s.routed(5, 1, one)
	require.Equal(t, 1, s.classes().Hot)
	s.routed(1, 2, one)
	assert.Zero(t, s.classes().Hot, "another class has its place")
	s.routed(9, 2, one)
	assert.Equal(t, 1, s.classes().Hot)
}

func TestHotspotClassIsTheHead(t *testing.T) {
	s := newSpot(scorer.HotspotConfig{HeadTokens: 64})
	cs := candidates(indicators{h: 64}, indicators{}, indicators{}, indicators{})
	s.routed(10, 1<<40, cs[1:])
	head := blocks(1)[:4]
	send := func(req endpick.Request) int {
		req = req.At(s.now, 1, 1)
		left := s.Filter.Filter(&req, slices.Clone(cs))
		s.observe(&endpick.Event{Request: &req, Candidate: &cs[0], Candidates: cs, Now: s.now})
		return len(cs) - len(left)
	}
	for i := range 8 { // one head, many tails
		send(endpick.Request{InputTokens: 90, Blocks: slices.Concat(head, []uint64{uint64(1000 + i)})})
	}
	cs[0].PrefixTokens = 63
	assert.Equal(t, 1, send(endpick.Request{InputTokens: 64, Blocks: head}), "the head alone: 63 tokens of it count")
	cs[0].PrefixTokens = 64
	assert.Equal(t, 0, send(endpick.Request{InputTokens: 63, Blocks: head[:3]}), "a shorter one is another class")
	assert.Equal(t, 0, send(endpick.Request{InputTokens: 90}), "no blocks, no class")
	assert.Equal(t, 1, send(endpick.Request{InputTokens: 90, Blocks: head[3:], BlockTokens: 64}), "one large block")
}

// Blocks that do not divide the head evenly end before its end; the first one counts
// however long it is; and an endpoint that holds exactly the head holds it.
func TestHotspotHeadsByHand(t *testing.T) {
	for _, x := range []struct {
		name        string
		req         endpick.Request
		held        int // that makes an endpoint a holder
		other, same []uint64
	}{
		{"whole blocks", endpick.Request{InputTokens: 200, Blocks: []uint64{1, 2, 3, 4}, BlockTokens: 48}, 96, []uint64{1, 9, 3, 4}, []uint64{1, 2, 9, 4}},
		{"fewer than the head has", endpick.Request{InputTokens: 50, Blocks: []uint64{1, 2}}, 32, []uint64{1, 9}, []uint64{1, 2}},
		{"a block that is longer", endpick.Request{InputTokens: 300, Blocks: []uint64{1, 2}, BlockTokens: 150}, 150, []uint64{9, 2}, []uint64{1, 9}},
		{"the last token", endpick.Request{InputTokens: 128, Blocks: []uint64{1, 2, 3, 4, 5, 6, 7, 8}}, 127, []uint64{1, 2, 3, 4, 5, 6, 7, 9}, nil},
		{"a single token", endpick.Request{InputTokens: 1, Blocks: []uint64{1}}, 1, []uint64{2}, nil},
	} {
		s := newSpot(scorer.HotspotConfig{})
		cs := candidates(indicators{h: x.held}, indicators{h: x.held - 1, r: 2000}, indicators{r: 2000}, indicators{r: 2000})
		s.routed(10, 1<<40, cs[1:])
		send := func(req endpick.Request) int {
			req = req.At(s.now, 1, 1)
			s.observe(&endpick.Event{Request: &req, Candidate: &cs[0], Candidates: cs, Now: s.now})
			return len(s.Filter.Filter(&req, slices.Clone(cs)))
		}
		for range 20 {
			send(x.req)
		}
		assert.Equal(t, 3, send(x.req), x.name)
		x.req.Blocks = x.other
		assert.Equal(t, 4, send(x.req), "%s: another head", x.name)
		if x.same != nil {
			x.req.Blocks = x.same
			assert.Equal(t, 3, send(x.req), "%s: another tail", x.name)
		}
	}
}

// A class with an alarm is not filtered because another is hot, nor one that does as well
// elsewhere.
func TestHotspotOfOneClassAlone(t *testing.T) {
	s := newSpot(scorer.HotspotConfig{})
	one := candidates(indicators{h: 992}, indicators{}, indicators{}, indicators{})
	s.routed(4, 9, candidates(indicators{}))
	s.routed(10, 1, one)
	assert.Equal(t, 1, s.classes().Hot)
	s.routed(8, 2, one[:3]) // 8 of 22 of the requests, on one of three endpoints
	assert.Equal(t, 2, s.classes().Alarmed)

	equal := candidates(indicators{h: 992, q: 992}, indicators{}, indicators{}, indicators{}) // 8 + 992 against 1,000
	s = newSpot(scorer.HotspotConfig{})
	s.routed(4, 9, candidates(indicators{}))
	s.routed(10, 1, one)
	s.routed(100, 2, equal)
	assert.Equal(t, scorer.Classes{Tracked: 2, Alarmed: 2, Hot: 1}, s.classes())
	assert.Len(t, s.left(2, equal), 4)
	assert.Len(t, s.left(1, one), 4, "it has become rare")
	s.routed(1000, 1, one)
	assert.Len(t, s.left(1, one), 3)
	assert.Len(t, s.left(2, equal), 4)

	// The shortest possible window.
	s = newSpot(scorer.HotspotConfig{Window: 1})
	s.routed(3, 1, one)
	s.now = s.now.Add(time.Second)
	s.routed(3, 1, one)
	assert.Equal(t, 1, s.classes().Tracked)
}

// hotspotTwin keeps every request and recounts each time.
type hotspotTwin struct {
	requests []twinRequest
	streak   map[uint64]int // −1: no alarm; above 2·|M|: hot
}

type twinRequest struct {
	class uint64
	part  int
}

func (w *hotspotTwin) phase1(class uint64, part, holding, n int) bool {
	of, all := 0.0, 0.0
	for _, r := range w.requests {
		if r.part <= part-12 {
			continue
		}
		all++
		if r.class == class {
			of++
		}
	}
	if holding == 0 || holding == n || of == all {
		return false
	}
	x := of / all
	return x/(1-x) > float64(holding)/float64(n-holding)+1e-9
}

func TestHotspotIsLikeItsTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSpot(scorer.HotspotConfig{})
		begin := s.now
		w := &hotspotTwin{streak: map[uint64]int{}}
		hot := map[uint64]bool{}
		seen := map[uint64]bool{}
		draw := func(t *rapid.T) (uint64, []endpick.Candidate, int) {
			cs := candidates(make([]indicators, rapid.IntRange(1, 5).Draw(t, "endpoints"))...)
			holding := 0
			for i := range cs {
				cs[i].Running = float64(rapid.IntRange(0, 200).Draw(t, "running"))
				if rapid.Bool().Draw(t, "holds") {
					cs[i].PrefixTokens = 992
					holding++
				}
			}
			return uint64(rapid.IntRange(1, 3).Draw(t, "class")), cs, holding
		}
		part := func() int { return int(s.now.Sub(begin) / (5 * time.Second)) }
		// The parts of the window count from the first request.
		s.routed(1, 9, candidates(indicators{}))
		w.requests = append(w.requests, twinRequest{9, 0})
		t.Repeat(map[string]func(*rapid.T){
			"filter": func(t *rapid.T) {
				class, cs, holding := draw(t)
				want := len(cs)
				if hot[class] && w.phase1(class, part(), holding, len(cs)) {
					want -= holding
				}
				require.Len(t, s.left(class, cs), want, "of %d", len(cs))
			},
			"route": func(t *rapid.T) {
				class, cs, holding := draw(t)
				for range rapid.IntRange(1, 4).Draw(t, "times") {
					s.routed(1, class, cs)
					if !seen[class] && holding == 0 {
						// Not tracked yet: it only counts for the total.
						w.requests = append(w.requests, twinRequest{0, part()})
						continue
					}
					seen[class] = true
					w.requests = append(w.requests, twinRequest{class, part()})
					on, off := 1e18, 1e18
					for i := range cs {
						if cs[i].PrefixTokens > 0 {
							on = min(on, 8*(cs[i].Running+1))
						} else {
							off = min(off, 1000*(cs[i].Running+1))
						}
					}
					was, alarmed := w.streak[class]
					switch {
					case !w.phase1(class, part(), holding, len(cs)):
						delete(w.streak, class)
						delete(hot, class)
					case !alarmed:
						w.streak[class] = 0
					case hot[class]:
					case on < off:
						w.streak[class] = was + 1
						hot[class] = was+1 > 2*holding
					default:
						w.streak[class] = 0
					}
				}
			},
			"wait": func(t *rapid.T) {
				s.now = s.now.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "s")) * time.Second)
				s.routed(1, 9, candidates(indicators{}))
				w.requests = append(w.requests, twinRequest{9, part()})
				for class := range seen {
					if !slices.ContainsFunc(w.requests, func(r twinRequest) bool { return r.class == class && r.part > part()-12 }) {
						delete(seen, class)
						delete(hot, class)
						delete(w.streak, class)
					}
				}
			},
			"": func(t *rapid.T) {
				n := 0
				for _, is := range hot {
					if is {
						n++
					}
				}
				if c := s.classes(); c.Hot != n || c.Alarmed != len(w.streak) {
					t.Fatalf("%+v, the twin has %d hot of %d", c, n, len(w.streak))
				}
			},
		})
	})
}

func TestHotspotAllocatesNothing(t *testing.T) {
	rig.SkipUnderRace(t, "the race detector allocates")
	s := newSpot(scorer.HotspotConfig{})
	cs := candidates(make([]indicators, 100)...)
	cs[0].PrefixTokens = 992
	s.routed(1, 2, cs)
	s.routed(10, 1, cs)
	require.Equal(t, 1, s.classes().Hot)
	req := s.prompt(1)
	e := endpick.Event{Request: &req, Candidate: &cs[0], Candidates: cs, Now: s.now}
	assert.Zero(t, testing.AllocsPerRun(20, func() {
		s.Filter.Filter(&req, cs)
		s.observe(&e)
	}))
}

// By default 32 classes are tracked, those whose head some endpoint holds.
func TestHotspotDefaultClasses(t *testing.T) {
	s := newSpot(scorer.HotspotConfig{})
	one := candidates(indicators{h: 992}, indicators{})
	for class := range uint64(40) {
		s.routed(1, 100+class, candidates(indicators{}, indicators{}))
		assert.Equal(t, min(int(class), 32), s.classes().Tracked)
		s.routed(1, class+1, one)
		assert.Equal(t, min(int(class+1), 32), s.classes().Tracked)
	}
}
