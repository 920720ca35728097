package delay

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

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

// As many uses are expected as there were, fading to 1/e in ten seconds, less their standard
// deviation.
func TestUsesByHand(t *testing.T) {
	var u uses
	const now = int64(1e18)
	assert.Zero(t, u.expected(7, now))
	u.add(7, now)
	assert.Zero(t, u.expected(7, now), "one may be by chance")
	for range 3 {
		u.add(7, now)
	}
	assert.InDelta(t, 4-2, u.expected(7, now), 1e-9)
	assert.InDelta(t, 4-2, u.expected(7, now-5e9), 1e-9, "a clock that was set back")
	assert.InDelta(t, 4/math.E-2/math.Sqrt(math.E), u.expected(7, now+10e9), 1e-9)
	assert.Zero(t, u.expected(7, now+30e9))
	u.add(7, now+10e9)
	n := 4/math.E + 1
	assert.InDelta(t, n-math.Sqrt(n), u.expected(7, now+10e9), 1e-9)
	assert.Zero(t, u.expected(7+uint64(len(u)), now), "another one")

	u.add(0, now)
	u.add(0, now)
	assert.Equal(t, use{}, u[0], "what is not known is not counted")
}

// Of two that share a place, the first one has it until it is seldom asked for.
func TestUsesThatShareAPlace(t *testing.T) {
	var u uses
	const now = int64(1e18)
	a, b := uint64(7), 7+uint64(len(u))
	u.add(a, now)
	u.add(a, now)
	u.add(b, now+6e9) // 2/e^0.6 is 1.1
	assert.Equal(t, use{a, 2, now}, u[7])
	u.add(b, now+7e9) // 2/e^0.7 is 0.99
	assert.Equal(t, use{b, 1, now + 7e9}, u[7])
}

// A prompt of 1,000 tokens: b and d hold 320 of them, c 960, a nothing. Eight uses of the first
// 320 tokens are expected, two for each of three holders and one more, and one of the first 960,
// half of it for another holder: others pay for two thirds of the former and a third of the
// rest.
func TestCopiesByHand(t *testing.T) {
	var u uses
	req := prompt(1000)
	const now = int64(1e18)
	times := func(block, n uint64) { // with n − √n expected
		u[block] = use{block: block, count: math.Pow(0.5+math.Sqrt(0.25+float64(n)), 2), at: now}
		require.InDelta(t, float64(n), u.expected(block, now), 1e-9)
	}
	times(20, 8)
	times(60, 1)
	var s copies
	cs := matched(0, 320, 960, 320)
	s.price(&u, &req, cs, now)
	const first, second = 320 * 2 / 3., 640 / 3.
	assert.InDelta(t, first+second, s.of(0), 1e-9)
	assert.InDelta(t, second, s.of(320), 1e-9)
	assert.InDelta(t, 0, s.of(960), 1e-9)
	assert.Zero(t, s.of(999))

	// Where nobody holds more, nothing is a copy.
	s.price(&u, &req, matched(320, 320, 320), now)
	assert.Zero(t, s.of(320))
	assert.InDelta(t, first, s.of(0), 1e-9)
	s.price(&u, &req, matched(0, 0), now)
	assert.Zero(t, s.of(0))

	// A prompt that is held completely matches up to its last token.
	whole := prompt(960)
	s.price(&u, &whole, matched(0, 959), now)
	assert.InDelta(t, 959/3., s.of(0), 1e-9)

	// Blocks whose length is an estimate.
	odd := req
	odd.BlockTokens = 12.7
	for n := 1; n <= len(odd.Blocks); n++ {
		assert.Equal(t, uint64(n), blockAt(&odd, int(float64(n)*12.7)))
	}
	assert.Zero(t, blockAt(&req, 0))
	assert.Zero(t, blockAt(&req, 993), "beyond the last block")

	// Without blocks nobody knows.
	unknown := req
	unknown.Blocks = nil
	s.price(&u, &unknown, cs, now)
	assert.Zero(t, s.of(0))
}

// The naive twin adds up token by token, and does not depend on the order of candidates.
func TestCopiesTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		req := prompt(16 * 40)
		const now = int64(1e18)
		var u uses
		for i := range 40 {
			u[i+1] = use{block: uint64(i + 1), count: rapid.Float64Range(0, 20).Draw(t, "count"), at: now}
		}
		depths := rapid.SliceOfN(rapid.IntRange(0, 39), 1, 30).Draw(t, "depths")
		held := map[int]bool{}
		for i := range depths {
			if depths[i] > 0 && len(held) == mostDepths {
				depths[i] = 0
			}
			depths[i] *= 16
			if depths[i] > 0 {
				held[depths[i]] = true
			}
		}
		var s copies
		s.price(&u, &req, matched(depths...), now)
		for _, from := range depths {
			want := 0.0
			for token := from; token < len(req.Blocks)*16; token++ {
				next := 0 // the depth at which the next candidate leaves
				for h := range held {
					if h > token && (next == 0 || h < next) {
						next = h
					}
				}
				if next > 0 {
					holders := 0
					for _, h := range depths {
						if h >= next {
							holders++
						}
					}
					n := u.expected(blockAt(&req, next), now) / float64(holders+1)
					want += n / (1 + n)
				}
			}
			require.InDelta(t, want, s.of(from), 1e-6)
		}
		rand.New(rand.NewPCG(uint64(len(depths)), 1)).Shuffle(len(depths), func(a, b int) { depths[a], depths[b] = depths[b], depths[a] })
		var other copies
		other.price(&u, &req, matched(depths...), now)
		require.Equal(t, s, other)
	})
}

// Of more than sixteen depths, the deepest don't count, but who holds that much holds less, too.
func TestCopiesOfManyDepths(t *testing.T) {
	var u uses
	req := prompt(1000)
	var depths []int
	for i := range 20 {
		depths = append(depths, (20-i)*16)
	}
	u[16] = use{block: 16, count: 16, at: 0} // twelve are expected
	u[17] = use{block: 17, count: 16, at: 0}
	var s copies
	s.price(&u, &req, append(matched(depths...), matched(320, 272)...), 0)
	const part = 12 / 8. // of seven holders and another one
	assert.InDelta(t, 16*part/(1+part), s.of(0), 1e-9)
	assert.InDelta(t, 16*part/(1+part), s.of(240), 1e-9)
	assert.Zero(t, s.of(256))
	assert.Zero(t, s.of(272))
}

// A request pays its own time to first token in full, and of what a copy costs others, its
// share: 1,000 of the 2,000 tokens it has to compute are a copy for two: two uses are expected,
// and each of two holders gets one.
func TestCostOfACopyByHand(t *testing.T) {
	m := fresh(t, horizon)
	m.prompt.add(3000)
	m.anew.add(1500) // so that a token's place costs another one
	req := prompt(3000).At(time.Unix(1e9, 0), 1, 1)
	cs := matched(2000, 1000)
	cs[1].Running = 4
	cs[1].Reported, cs[1].KVUsage = endpick.KVUsageSignal, 0.5
	m.uses[125] = use{block: 125, count: 4, at: 1e18} // at 2,000 tokens
	costs := func(blocks []uint64) (out cost) {
		req := req
		req.Blocks = blocks
		d := m.decide(&req, cs)
		defer d.end()
		d.of(&cs[1], &out)
		return out
	}
	alone, shared := costs(nil), costs(req.Blocks)
	const pairs = 2000 * (1000 + 2000/2) / 30_000.
	// Four requests wait for it now; beside whoever comes back for what it evicts, there are
	// two on average.
	assert.InDelta(t, (2000+pairs)*4+2000*(2+4), alone.Prefill, 1e-6)
	assert.InDelta(t, ((2000+pairs)*4+2000*(2+4))*1500/2000, shared.Prefill, 1e-6)
	alone.Prefill, shared.Prefill = 0, 0
	assert.Equal(t, alone, shared)

	// Where there may be no room, a copy may be gone before it is used.
	for _, change := range []func(c *endpick.Candidate){
		func(c *endpick.Candidate) { c.KVUsage = 0.51 },
		func(c *endpick.Candidate) { c.Reported = 0 },
	} {
		was := cs[1]
		change(&cs[1])
		assert.Equal(t, costs(nil), costs(req.Blocks))
		cs[1] = was
	}
}

// Half of the memory has to be unused, by the report, and otherwise by what the router has sent.
func TestRoomForCopies(t *testing.T) {
	for _, tc := range []struct {
		name            string
		reported        bool
		usage           float64
		context, output int
		size            int
		want            bool
	}{
		{name: "half is unused", reported: true, usage: 0.5, want: true},
		{name: "less", reported: true, usage: 0.51},
		{name: "a report includes what is sent", reported: true, usage: 0.5, context: 1000, size: 1000, want: true},
		{name: "nothing is known"},
		{name: "nothing is there", size: 1000, want: true},
		{name: "less than half is sent", context: 300, output: 199, size: 1000, want: true},
		{name: "half of it", context: 300, output: 200, size: 1000},
		{name: "of how much?", context: 1},
		{name: "a usage that nobody reported", usage: 0.9, size: 1000, want: true},
	} {
		c := endpick.Candidate{Endpoint: &endpick.Endpoint{KVTokens: tc.size}, KVUsage: tc.usage}
		c.InFlight.ContextTokens, c.InFlight.OutputTokens = tc.context, tc.output
		if tc.reported {
			c.Reported = endpick.KVUsageSignal
		}
		assert.Equal(t, tc.want, roomy(&c), tc.name)
	}
}

// Every depth at which a candidate leaves a prompt is a use of what it holds.
func TestUsesAreCounted(t *testing.T) {
	m := fresh(t, 0)
	req := prompt(1000)
	cs := matched(0, 320, 960, 320)
	now := time.Unix(1e9, 0)
	m.Routed(&endpick.Event{Request: &req, Candidate: &cs[0], Candidates: cs, Lease: endpick.LeaseRef{Generation: 1}, RoutedAt: now, Now: now})
	counted := map[uint64]float64{}
	for _, e := range m.uses {
		if e.block != 0 {
			counted[e.block] = e.count
		}
	}
	assert.Equal(t, map[uint64]float64{20: 1, 60: 1}, counted)
}
