package explore_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/explore"
)

func TestNew(t *testing.T) {
	for _, tc := range []struct {
		p        float64
		disabled bool
		want     explore.Probability
		err      string
	}{
		{0, false, 0.01, ""},
		{0, true, 0, ""},
		{0.5, false, 0.5, ""},
		{0.5, true, 0, "x.Exploration is set and disabled"},
		{math.NaN(), true, 0, "x.Exploration is set and disabled"},
		{1, false, 0, "x.Exploration is 1, outside (0, 1)"},
		{-0.1, false, 0, "outside"},
		{math.NaN(), false, 0, "outside"},
	} {
		got, err := explore.New("x.Exploration", tc.p, tc.disabled)
		assert.Equal(t, tc.want, got)
		if tc.err == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, endpick.ErrConfig)
		assert.ErrorContains(t, err, tc.err)
	}
}

func TestHits(t *testing.T) {
	hits := map[explore.Probability]int{0: 0, 0.1: 0}
	for i := range 10_000 {
		req := endpick.Request{}.At(time.Time{}, 1, uint64(i))
		for p := range hits {
			if p.Hits(&req, 7) {
				hits[p]++
			}
		}
	}
	assert.Zero(t, hits[0])
	assert.InDelta(t, 1000, hits[0.1], 120)
}
