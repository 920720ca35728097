package delay

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick"
)

// matched are candidates that hold so many tokens of a prompt.
func matched(depths ...int) (cs []endpick.Candidate) {
	for i, h := range depths {
		cs = append(cs, endpick.Candidate{
			Endpoint: &endpick.Endpoint{ID: string(rune('a' + i))}, Ref: endpick.EndpointRef{Slot: uint32(i), Generation: 1}, PrefixTokens: h,
		})
	}
	return cs
}

// prompt has blocks of 16 tokens: 1, 2, 3 and so on.
func prompt(tokens int) endpick.Request {
	req := endpick.Request{Model: "m", InputTokens: tokens, Stream: true}
	for i := range tokens / 16 {
		req.Blocks = append(req.Blocks, uint64(i+1))
	}
	return req
}

// Uses fade to 1/e in ten seconds.
func TestUsesByHand(t *testing.T) {
	var u uses
	const now = int64(1e18)
	assert.Zero(t, u.recent(7, now))
	for range 4 {
		u.add(7, now)
	}
	assert.InDelta(t, 4, u.recent(7, now), 1e-9)
	assert.InDelta(t, 4, u.recent(7, now-5e9), 1e-9, "a clock that was set back")
	assert.InDelta(t, 4/math.E, u.recent(7, now+10e9), 1e-9)
	u.add(7, now+10e9)
	assert.InDelta(t, 4/math.E+1, u.recent(7, now+10e9), 1e-9)
	assert.Zero(t, u.recent(7+uint64(len(u)), now), "another one")

	u.add(0, now)
	assert.Equal(t, use{}, u[0], "what is not known is not counted")
	u[0].count.add(now)
	assert.Zero(t, u.recent(0, now))
}

// Of two that share a place, the first one has it until it is seldom asked for.
func TestUsesThatShareAPlace(t *testing.T) {
	var u uses
	const now = int64(1e18)
	a, b := uint64(7), 7+uint64(len(u))
	u.add(a, now)
	u.add(a, now)
	u.add(b, now+6e9) // 2/e^0.6 is 1.1
	assert.Equal(t, use{a, fading{2, now}}, u[7])
	u.add(b, now+7e9) // 2/e^0.7 is 0.99
	assert.Equal(t, use{b, fading{1, now + 7e9}}, u[7])
}

// Of nine uses six are expected: three for each of the two holders and the one that will be.
func TestCopiesByHand(t *testing.T) {
	req := prompt(1000)
	for name, x := range map[string]struct {
		depths  []int
		uses    float64
		deepest int
		part    float64
	}{
		"two hold most":      {[]int{0, 960, 320, 960}, 9, 960, 2 / 3.},
		"one does":           {[]int{0, 960}, 9, 960, 3 / 4.},
		"seldom":             {[]int{0, 960}, 1, 960, 0},
		"never":              {[]int{0, 960}, 0, 960, 0},
		"nobody":             {[]int{0, 0}, 9, 0, 0},
		"beyond all blocks":  {[]int{999}, 9, 999, 0},
		"less than a block":  {[]int{953}, 9, 953, 3 / 4.},
		"below zero is none": {[]int{-5}, 9, 0, 0},
	} {
		var u uses
		u[60] = use{60, fading{x.uses, 0}}
		var s copies
		for _, depth := range x.depths {
			s.add(depth)
		}
		s.expect(&u, &req, 0)
		assert.Equal(t, x.deepest, s.deepest, name)
		assert.InDelta(t, x.part, s.part, 1e-9, name)
	}
	// Blocks whose length is an estimate.
	odd := req
	odd.BlockTokens = 12.7
	for n := 1; n <= len(odd.Blocks); n++ {
		assert.Equal(t, uint64(n), blockAt(&odd, int(float64(n)*12.7)))
	}
	fractions := endpick.Request{BlockTokens: 1.4, Blocks: prompt(16 * 60).Blocks}
	for depth, block := range map[int]uint64{21: 15, 42: 30, 84: 60, 85: 0} {
		assert.Equal(t, block, blockAt(&fractions, depth), "%d tokens", depth)
	}
}

// The deepest prefix that anybody holds is used once by each request that is answered.
func TestUsesAreCounted(t *testing.T) {
	for answered, want := range map[bool]float64{true: 1, false: 0} {
		m := newMarginal(t, Config{})
		req := prompt(1000)
		cs := matched(0, 320, 960, 320)
		now := time.Unix(1e9, 0)
		ev := &endpick.Event{Request: &req, Candidate: &cs[0], Candidates: cs, Lease: endpick.LeaseRef{Generation: 1}, RoutedAt: now, Now: now}
		m.Routed(ev)
		req.Blocks = nil // as in all other events
		if answered {
			m.FirstToken(ev)
			m.FirstToken(ev)
			m.Done(ev, &endpick.Outcome{})
		} else {
			m.Done(ev, &endpick.Outcome{Status: endpick.Failed})
		}
		assert.Equal(t, want, m.learned.uses.recent(60, nanoseconds(now)))
		assert.Zero(t, m.learned.uses.recent(20, nanoseconds(now)))
		assert.Equal(t, want, m.learned.common.arrivals.at(nanoseconds(now))+sum(m.learned.kinds.known, now))
	}
}

func sum(kinds map[kindName]*kind, now time.Time) (n float64) {
	for _, k := range kinds {
		n += k.arrivals.at(nanoseconds(now))
	}
	return n
}
