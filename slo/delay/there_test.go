package delay_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/delay"
)

// A request that waits for a place does not decode: of two full servers, the one
// with the longer queue has the later first token and the same time per token.
func TestWhoWaitsForAPlaceDoesNotDecode(t *testing.T) {
	w := newWorld(t, map[string]server{"a": plain, "b": plain, "c": plain}, nil)
	for i := range 200 {
		w.serve("a", 100+i*37%3000, 50+i%100, i%5)
	}
	ask := endpick.Request{InputTokens: 100, Stream: true, ExpectedOutputTokens: 100}
	for id, batch := range map[string]float64{"a": 7, "b": 8, "c": 20} {
		require.NoError(t, w.router.Update(endpick.Endpoint{ID: id, MaxSequences: 8}))
		require.NoError(t, w.router.Report(id, endpick.Load{Waiting: max(batch-8, 0), Running: min(batch, 8)}))
	}
	full := w.predictions(ask)
	assert.Equal(t, full["a"].TPOT, full["b"].TPOT, "eight decode, with it")
	assert.Equal(t, full["b"].TPOT, full["c"].TPOT)
	assert.Greater(t, full["b"].TTFT, full["a"].TTFT)
	assert.Greater(t, full["c"].TTFT, full["b"].TTFT)

	for id := range full {
		require.NoError(t, w.router.Update(endpick.Endpoint{ID: id}))
	}
	endless := w.predictions(ask)
	assert.Greater(t, endless["c"].TPOT, endless["b"].TPOT, "as far as anybody knows all of them do")
}

// A wait is learned at the first token, not at the end of the response: the weight of
// the next requests follows at once.
func TestWeightFollowsFirstTokens(t *testing.T) {
	w := newWorld(t, map[string]server{"a": plain}, nil)
	ask := endpick.Request{Model: "m", InputTokens: 100, Stream: true}
	for range 20 {
		w.serve("a", 1000, 100, 0)
	}
	before := delay.WeightOf(w.m, &ask)
	var open []endpick.Lease
	for range 20 {
		l, err := w.router.Route(ask)
		require.NoError(t, err)
		open = append(open, l)
	}
	w.now = w.now.Add(10 * time.Second)
	assert.Equal(t, before, delay.WeightOf(w.m, &ask))
	for _, l := range open {
		l.FirstToken()
	}
	assert.Less(t, delay.WeightOf(w.m, &ask), before/2)
}

// The value of a place in a cache follows from the time per token on the servers that
// prompts went to, each kind of server by itself.
func TestRecomputingIsOfTheServersThatCompute(t *testing.T) {
	fast, slow := plain, plain
	slow.token = 4 * plain.token
	for _, c := range []struct {
		slow int // of four prompts
		want float64
	}{{0, 1}, {2, 2.5}, {4, 4}} {
		w := newWorld(t, map[string]server{"a": fast, "b": slow}, map[string]string{"a": "fast", "b": "slow"})
		for i := range 800 {
			id := "a"
			if i%4 < c.slow {
				id = "b"
			}
			w.serve(id, 500+i*37%3000, 20+i%30, i%3)
		}
		assert.InEpsilon(t, c.want*plain.token.Seconds()*1e3, delay.Recomputing(w.m), 0.1, "%d of 4", c.slow)
	}
}

// A server whose memory is nearly full is slow because requests wait and its cache is
// evicted, not because it computes slowly. If that were learned as speed, a token
// would seem cheap just when it costs others most.
func TestPressureTeachesNothing(t *testing.T) {
	for _, c := range []struct {
		usage float64
		moves bool
	}{{0.5, true}, {0.99, false}} {
		w := newWorld(t, map[string]server{"a": plain, "b": plain}, nil)
		require.NoError(t, w.router.Update(endpick.Endpoint{ID: "a", KVTokens: 100_000}))
		ask := endpick.Request{InputTokens: 4000, Stream: true, ExpectedOutputTokens: 100}
		for i := range 200 {
			w.serve("a", 100+i*37%3000, 50+i%100, i%5)
		}
		before := w.predictions(ask)["b"] // of the same kind
		// Each request waits for a second, whatever its prompt.
		w.servers["a"] = server{token: 0, step: plain.step + time.Second/2, slot: plain.slot}
		for i := range 200 {
			require.NoError(t, w.router.Report("a", endpick.Load{KVUsage: c.usage, Running: 0}))
			w.serve("a", 100+i*37%3000, 50+i%100, 0)
		}
		require.NoError(t, w.router.Report("a", endpick.Load{KVUsage: c.usage, Running: 0}))
		after := w.predictions(ask)["b"]
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
		w := newWorld(t, map[string]server{"a": plain, "b": plain}, nil)
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
