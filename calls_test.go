package endpick_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/orders"
	"github.com/endpick/endpick/internal/lab/race"
)

// The router itself, in all orders of calls: one request streams and one does not,
// leases are closed twice and after they were reaped, while their endpoint is removed
// and added again.
func TestCallsInAllInterleavings(t *testing.T) {
	n := 0
	for order := range orders.All(3, 2, 2, 1) {
		if n++; race.Enabled && n%50 != 0 {
			continue // there is only one goroutine
		}
		now := time.Unix(1000, 0)
		heard := &hears{}
		r, err := endpick.New(endpick.Config{
			Seed: 1, Clock: func() time.Time { return now }, LeaseTimeout: time.Minute, Endpoints: []endpick.Endpoint{{ID: "a"}},
			Policy: endpick.Policy{Scorers: []endpick.Weighted{{Scorer: heard, Weight: 1}}},
		})
		require.NoError(t, err)
		var leases [2]endpick.Lease
		present, routed := true, 0
		route := func(i int, stream bool) {
			lease, err := r.Route(endpick.Request{InputTokens: 100, Stream: stream})
			require.Equal(t, present, err == nil, "%v: %v", order, err)
			if leases[i] = lease; err == nil {
				routed++
			}
		}
		steps := [][]func(){
			{func() { route(0, true) }, func() { leases[0].Tokens(3) }, func() { leases[0].Done(endpick.Outcome{}); require.False(t, leases[0].Done(endpick.Outcome{})) }},
			{func() { route(1, false) }, func() { leases[1].Done(endpick.Outcome{Status: endpick.Canceled}) }},
			{func() { require.NoError(t, r.Remove("a")); present = false }, func() { require.NoError(t, r.Add(endpick.Endpoint{ID: "a"})); present = true }},
			{func() { now = now.Add(time.Hour); r.Sweep(now) }},
		}
		var at [4]int
		for _, thread := range order {
			steps[thread][at[thread]]()
			at[thread]++
			var requests, prefilling, tokens int
			for _, e := range r.Endpoints() {
				f := e.Candidate.InFlight
				requests, prefilling, tokens = requests+f.Requests, prefilling+f.Prefilling, tokens+f.ContextTokens
			}
			require.Equal(t, r.Stats().OpenLeases, requests, "%v", order)
			require.Equal(t, 100*requests, tokens, "%v", order)
			require.LessOrEqual(t, prefilling, requests, "%v", order)
			require.Equal(t, routed-requests, heard.ended, "%v", order)
		}
		require.Zero(t, r.Stats().OpenLeases, "%v", order)
		for _, e := range r.Endpoints() {
			require.Zero(t, e.Candidate.InFlight, "%v", order)
			require.False(t, e.Removed, "%v: the one that has gone is still there", order)
		}
	}
	assert.Equal(t, 1680, n)
}

// hears counts the requests that have ended.
type hears struct{ ended int }

func (*hears) Score(_ *endpick.Request, _ []endpick.Candidate, dst []float64) { clear(dst) }
func (h *hears) Done(*endpick.Event, *endpick.Outcome)                        { h.ended++ }
