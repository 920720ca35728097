package endpick_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// telling is a scorer with reasons.
type telling struct {
	prefix string
	panics bool
}

func (telling) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i := range candidates {
		dst[i] = float64(len(candidates[i].Endpoint.ID)) / 10
	}
}

func (s telling) Explain(_ *endpick.Request, candidates []endpick.Candidate, dst []string) {
	if s.panics {
		panic("speechless")
	}
	for i := range candidates {
		dst[i] = s.prefix + candidates[i].Endpoint.ID
	}
}

// only keeps the endpoints whose IDs are longer than one letter.
type only struct{}

func (only) Filter(_ *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	return endpick.Keep(candidates, func(c *endpick.Candidate) bool { return len(c.Endpoint.ID) > 1 })
}

// A receipt has the reasons of the scorers that have any, each with its candidate,
// and none for candidates that a filter has removed.
func TestReasons(t *testing.T) {
	weighted := func(scorers ...endpick.Scorer) (w []endpick.Weighted) {
		for _, s := range scorers {
			w = append(w, endpick.Weighted{Scorer: s, Weight: 1})
		}
		return w
	}
	for _, tc := range []struct {
		name    string
		scorers []endpick.Weighted
		want    map[string]string
		panics  uint64
	}{
		{"none", nil, map[string]string{"x": "", "ab": "", "abc": ""}, 0},
		{"one", weighted(telling{prefix: "is "}), map[string]string{"x": "", "ab": "is ab", "abc": "is abc"}, 0},
		{"two", weighted(telling{prefix: "is "}, telling{prefix: "was "}), map[string]string{"x": "", "ab": "is ab; was ab", "abc": "is abc; was abc"}, 0},
		{"a panic", weighted(telling{panics: true}, telling{prefix: "was "}), map[string]string{"x": "", "ab": "was ab", "abc": "was abc"}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := endpick.New(endpick.Config{
				Endpoints: []endpick.Endpoint{{ID: "x"}, {ID: "ab"}, {ID: "abc"}},
				Policy:    endpick.Policy{Filters: []endpick.Filter{only{}}, Scorers: tc.scorers},
			})
			require.NoError(t, err)
			var receipt endpick.Receipt
			_, err = r.Route(endpick.Request{Receipt: &receipt})
			require.NoError(t, err)
			got := map[string]string{}
			for _, v := range receipt.Verdicts {
				got[v.Candidate.Endpoint.ID] = v.Why
			}
			assert.Equal(t, tc.want, got)
			assert.Equal(t, tc.panics, r.Stats().Panics)
			if tc.want["ab"] != "" {
				assert.Contains(t, receipt.String(), " ("+tc.want["ab"]+")\n")
			}
			_, err = r.Route(endpick.Request{})
			require.NoError(t, err)
			assert.Equal(t, tc.panics, r.Stats().Panics, "without a receipt nobody is asked")
		})
	}
}
