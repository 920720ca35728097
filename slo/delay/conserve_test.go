package delay

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// Once all requests have ended, in whatever way, no endpoint has anything left of
// them: no prompt to compute, no decoding, no memory.
func TestNothingIsLeftOfWhatHasEnded(t *testing.T) {
	m, err := New(Config{})
	require.NoError(t, err)
	now := time.Unix(1e9, 0)
	r, err := endpick.New(endpick.Config{
		Clock: func() time.Time { return now }, Endpoints: []endpick.Endpoint{{ID: "a"}, {ID: "b"}},
		Policy: endpick.Policy{Predictor: m, Scorers: []endpick.Weighted{{Scorer: m, Weight: 1}}},
	})
	require.NoError(t, err)
	chance := rand.New(rand.NewPCG(1, 2))
	var open []endpick.Lease
	end := func() {
		i := chance.IntN(len(open))
		l := open[i]
		open = append(open[:i], open[i+1:]...)
		if chance.IntN(3) > 0 {
			l.FirstToken()
			now = now.Add(time.Duration(chance.IntN(1000)) * time.Millisecond)
			l.Tokens(chance.IntN(50))
		}
		l.Done(endpick.Outcome{Status: []endpick.Status{endpick.Completed, endpick.Completed, endpick.Canceled, endpick.Failed, endpick.Lost}[chance.IntN(5)]})
	}
	left := func() (sum float64) {
		for _, e := range m.endpoints.All() {
			sum += e.pairs + e.decoding + e.resident
		}
		return sum
	}
	for range 500 {
		l, err := r.Route(endpick.Request{Model: "m", InputTokens: 1 + chance.IntN(5000), Stream: chance.IntN(4) > 0, ExpectedOutputTokens: chance.IntN(300)})
		require.NoError(t, err)
		open = append(open, l)
		require.Positive(t, left())
		now = now.Add(time.Duration(chance.IntN(100)) * time.Millisecond)
		for len(open) > 0 && len(open) > chance.IntN(20) {
			end()
		}
	}
	for len(open) > 0 {
		end()
	}
	require.InDelta(t, 0, left(), 1e-3)
}
