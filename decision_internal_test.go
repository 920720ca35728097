package endpick

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What a caller owns is not kept by the memory that the next decision will use.
func TestDecisionsForget(t *testing.T) {
	r, err := New(Config{Endpoints: []Endpoint{{ID: "a"}}})
	require.NoError(t, err)
	_, err = r.Route(Request{Blocks: []uint64{1}, Exclude: []string{"b"}, Receipt: new(Receipt)})
	require.NoError(t, err)
	d := r.work.Get().(*decision)
	require.Equal(t, Request{}, d.req)
	require.Nil(t, d.pool)
}

// Candidates are made anew for every decision, whatever stages have done to them.
func TestCandidatesAreMadeAnew(t *testing.T) {
	var seen []Candidate
	r, err := New(Config{Endpoints: []Endpoint{{ID: "a"}, {ID: "b"}, {ID: "c"}}, Policy: Policy{Matcher: spoiler{&seen}, Predictor: spoiler{}, Filters: []Filter{spoiler{}}}})
	require.NoError(t, err)
	for n := range 3 {
		_, err := r.Route(Request{InputTokens: 10})
		require.NoError(t, err)
		for i, id := range []string{"a", "b", "c"} {
			require.Equal(t, id, seen[i].Endpoint.ID)
			require.Equal(t, n*(i/2), seen[i].InFlight.Requests)
			require.Zero(t, seen[i].PrefixTokens+seen[i].EvictedTokens)
			require.Equal(t, Prediction{}, seen[i].Prediction)
		}
	}
}

// spoiler changes what it may, and overwrites candidates instead of moving them.
type spoiler struct{ seen *[]Candidate }

func (s spoiler) Match(_ *Request, candidates []Candidate) {
	*s.seen = slices.Clone(candidates)
	for i := range candidates {
		candidates[i].PrefixTokens, candidates[i].EvictedTokens = 5, 2
	}
}

func (spoiler) Predict(_ *Request, candidates []Candidate) {
	for i := range candidates {
		candidates[i].Prediction = Prediction{TTFT: time.Second} // not in Has
	}
}

func (spoiler) Filter(_ *Request, candidates []Candidate) []Candidate {
	return append(candidates[:0], candidates[len(candidates)-1])
}
