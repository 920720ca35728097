package endpick_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// seen is a stage that records which candidates it sees.
type seen struct{ predicted, admitted []string }

func idsOf(candidates []endpick.Candidate) (ids []string) {
	for _, c := range candidates {
		ids = append(ids, c.Endpoint.ID)
	}
	return ids
}

func (s *seen) Predict(_ *endpick.Request, c []endpick.Candidate) { s.predicted = idsOf(c) }
func (s *seen) Admit(_ *endpick.Request, c []endpick.Candidate) error {
	s.admitted = idsOf(c)
	return nil
}

// Candidates that the shortlist removes are not predicted, later stages don't see
// them, and the receipt names the filter; if it would remove all, it removes none.
func TestShortlist(t *testing.T) {
	s := &seen{}
	only := func(ids ...string) endpick.Filter {
		return filterFunc(func(_ *endpick.Request, c []endpick.Candidate) []endpick.Candidate {
			return endpick.Keep(c, func(c *endpick.Candidate) bool { return slices.Contains(ids, c.Endpoint.ID) })
		})
	}
	policy := endpick.Policy{
		Shortlist: []endpick.Filter{only("b", "c", "d"), only(), only("b", "c")}, Predictor: s,
		Admitters: []endpick.Admitter{s}, Filters: []endpick.Filter{only("c")},
	}
	r, _ := newRouter(t, endpick.Config{Endpoints: named("a", "b", "c", "d"), Policy: policy})
	var receipt endpick.Receipt
	l := route(t, r, endpick.Request{Receipt: &receipt})
	require.Equal(t, "c", l.Endpoint().ID)
	assert.Equal(t, []string{"b", "c"}, s.predicted)
	assert.Equal(t, []string{"b", "c"}, s.admitted)
	require.Len(t, receipt.Verdicts, 4)
	assert.Equal(t, []string{"c", "b", "d", "a"}, []string{
		receipt.Verdicts[0].Candidate.Endpoint.ID, receipt.Verdicts[1].Candidate.Endpoint.ID,
		receipt.Verdicts[2].Candidate.Endpoint.ID, receipt.Verdicts[3].Candidate.Endpoint.ID,
	}, "the last removed first")
	for i, by := range []string{"", "filter", "filter", "filter"} {
		assert.Equal(t, by, receipt.Verdicts[i].RemovedBy)
	}
}
