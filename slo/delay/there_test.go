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
