package delay_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/delay"
)

// A server whose memory is nearly full is slow because requests wait and its cache is
// evicted, not because it computes slowly. If that were learned as speed, a token
// would seem cheap just when it costs others most.
func TestPressureTeachesNothing(t *testing.T) {
	for _, c := range []struct {
		usage float64
		moves bool
	}{{0.5, true}, {0.99, false}} {
		w := newWorld(t, delay.Horizon|delay.Room|delay.OwnPace, map[string]server{"a": plain}, nil)
		require.NoError(t, w.router.Update(endpick.Endpoint{ID: "a", KVTokens: 100_000}))
		ask := endpick.Request{InputTokens: 4000, Stream: true, ExpectedOutputTokens: 100}
		for i := range 200 {
			w.serve("a", 100+i*37%3000, 50+i%100, i%5)
		}
		before := w.predictions(ask)["a"]
		// Each request waits for a second, whatever its prompt.
		w.servers["a"] = server{token: 0, step: plain.step + time.Second/2, slot: plain.slot}
		for i := range 200 {
			require.NoError(t, w.router.Report("a", endpick.Load{KVUsage: c.usage, Running: 0}))
			w.serve("a", 100+i*37%3000, 50+i%100, 0)
		}
		require.NoError(t, w.router.Report("a", endpick.Load{KVUsage: c.usage, Running: 0}))
		after := w.predictions(ask)["a"]
		if c.moves {
			assert.Greater(t, after.TPOT, before.TPOT*3/2)
			continue
		}
		assert.InEpsilon(t, before.TTFT, after.TTFT, 0.01)
		assert.InEpsilon(t, before.TPOT, after.TPOT, 0.01)
	}
}

// What else a removed server did is unknown: a response that ends after the removal
// teaches nothing of steps.
func TestWhoIsRemovedTeachesNothingOfSteps(t *testing.T) {
	for _, removed := range []bool{false, true} {
		w := newWorld(t, delay.Horizon, map[string]server{"a": plain, "b": plain}, nil)
		for i := range 50 {
			w.serve("a", 2000, 50, i%5)
			w.serve("b", 2000, 50, i%5)
		}
		ask := endpick.Request{InputTokens: 100, Stream: true, ExpectedOutputTokens: 100}
		before := w.predictions(ask)["b"].TPOT
		for range 20 {
			l, err := w.router.Route(endpick.Request{Model: "m", InputTokens: 2000, Stream: true, Exclude: []string{"b"}})
			require.NoError(t, err)
			l.FirstToken()
			if removed {
				require.NoError(t, w.router.Remove("a"))
				require.NoError(t, w.router.Add(endpick.Endpoint{ID: "a"}))
			}
			w.now = w.now.Add(100 * plain.step)
			l.Tokens(99)
			l.Done(endpick.Outcome{OutputTokens: 100})
		}
		after := w.predictions(ask)["b"].TPOT
		if removed {
			assert.Equal(t, before, after)
			continue
		}
		assert.NotEqual(t, before, after)
	}
}

// holder is a matcher: every server holds this share of every prompt.
type holder float64

func (holder) Name() string { return "holder" }

func (h holder) Match(req *endpick.Request, candidates []endpick.Candidate) {
	for i := range candidates {
		candidates[i].PrefixTokens = int(float64(h) * float64(req.InputTokens))
		candidates[i].EvictedTokens = candidates[i].PrefixTokens / 2 // which would have been found
	}
}

// A place in a cache costs others what would later be found there, at most two
// computations.
func TestEviction(t *testing.T) {
	for _, c := range []struct{ held, cost float64 }{
		{0, 0},
		{0.5, 1100.0/600 - 1}, // 1,000 tokens of prompt and 100 of response, 600 of them computed
		{0.6, 1100.0/500 - 1},
		{0.9, 2},
	} {
		m := newMarginal(t, delay.Config{})
		now := time.Unix(1e9, 0)
		r, err := endpick.New(endpick.Config{
			Clock:     func() time.Time { return now },
			Policy:    endpick.Policy{Matcher: holder(c.held), Predictor: m, Scorers: []endpick.Weighted{{Scorer: m, Weight: 1}}},
			Endpoints: []endpick.Endpoint{{ID: "a"}},
		})
		require.NoError(t, err)
		assert.Zero(t, delay.EvictionOf(m), "before anything is known")
		for range 500 {
			l, err := r.Route(endpick.Request{Model: "m", InputTokens: 1000, ExpectedOutputTokens: 100, Stream: true})
			require.NoError(t, err)
			now = now.Add(100 * time.Millisecond)
			l.FirstToken()
			now = now.Add(time.Second)
			l.Done(endpick.Outcome{OutputTokens: 100})
		}
		assert.InDelta(t, c.cost, delay.EvictionOf(m), 0.05)
	}
}
