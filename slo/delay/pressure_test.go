package delay_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

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
