package endpick_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func candidates(n int) []endpick.Candidate {
	c := make([]endpick.Candidate, n)
	for i := range c {
		id := fmt.Sprintf("e%d", i)
		c[i].Endpoint, c[i].ChanceKey = &endpick.Endpoint{ID: id}, endpick.Salt(id)
	}
	return c
}

// shares is how often each candidate is picked in 30,000 requests.
func shares(p endpick.Picker, scores ...float64) []float64 {
	const n = 30_000
	c := candidates(len(scores))
	counts := make([]float64, len(scores))
	for number := range uint64(n) {
		req := endpick.Request{}.At(time.Time{}, 42, number)
		counts[p.Pick(&req, c, scores)]++
	}
	for i := range counts {
		counts[i] /= n
	}
	return counts
}

func TestPickerShares(t *testing.T) {
	for _, c := range []struct {
		name   string
		picker endpick.Picker
		scores []float64
		want   []float64
	}{
		{"the best", endpick.MaxScore{}, []float64{1, 3, 2}, []float64{0, 1, 0}},
		{"the best, below zero", endpick.MaxScore{}, []float64{-3, -1, -2}, []float64{0, 1, 0}},
		{"one of the best", endpick.MaxScore{}, []float64{2, 1, 2, 2}, []float64{1. / 3, 0, 1. / 3, 1. / 3}},
		{"one of all", endpick.MaxScore{}, []float64{0, 0}, []float64{0.5, 0.5}},

		{"by weight", endpick.WeightedRandom{}, []float64{1, 2, 5}, []float64{0.125, 0.25, 0.625}},
		{"by tiny weight", endpick.WeightedRandom{}, []float64{1e-9, 3e-9}, []float64{0.25, 0.75}},
		{"zero and less are never picked", endpick.WeightedRandom{}, []float64{0, 1, -5, 1}, []float64{0, 0.5, 0, 0.5}},
		{"unless there is nothing else", endpick.WeightedRandom{}, []float64{0, -1, 0, -9}, []float64{0.25, 0.25, 0.25, 0.25}},
		// ln(u)/5e-324 is −Inf for every u: still no preference for the first.
		{"no weight is too small", endpick.WeightedRandom{}, []float64{5e-324, 5e-324}, []float64{0.5, 0.5}},

		// Of the 6 pairs among 4, 3 contain the best, 2 of the others the second, 1 the third.
		{"better of two", endpick.PowerOfTwo{}, []float64{1, 4, 3, 2}, []float64{0, 3. / 6, 2. / 6, 1. / 6}},
		{"better of two, all alike", endpick.PowerOfTwo{}, []float64{1, 1, 1, 1}, []float64{0.25, 0.25, 0.25, 0.25}},
		{"better of both", endpick.PowerOfTwo{}, []float64{1, 2}, []float64{0, 1}},
		{"only one", endpick.PowerOfTwo{}, []float64{-7}, []float64{1}},
		{"only one", endpick.MaxScore{}, []float64{-7}, []float64{1}},
		{"only one", endpick.WeightedRandom{}, []float64{-7}, []float64{1}},
	} {
		// Four standard deviations of a share of one half: 0.0115.
		assert.InDeltaSlice(t, c.want, shares(c.picker, c.scores...), 0.0115, "%T: %s", c.picker, c.name)
	}
}

// Neighbouring requests, seeds and salts are independent.
func TestChance(t *testing.T) {
	c := candidates(2)
	var sum, sumOf, product, seeds float64
	const n = 50_000
	for number := range uint64(n) {
		a := endpick.Request{}.At(time.Time{}, 1, number)
		b := endpick.Request{}.At(time.Time{}, 2, number)
		u := a.Chance(endpick.Salt("x"))
		require.True(t, 0 < u && u < 1)
		sum += u
		v0, v1 := a.ChanceOf(7, &c[0]), a.ChanceOf(7, &c[1])
		sumOf += v0
		product += (v0 - 0.5) * (v1 - 0.5)
		seeds += (u - 0.5) * (b.Chance(endpick.Salt("x")) - 0.5)
		require.Equal(t, u, a.Chance(endpick.Salt("x")), "a pure function")
	}
	// A mean of n draws varies by 0.29/√n = 0.0013, a covariance by 0.083/√n.
	assert.InDelta(t, 0.5, sum/n, 0.006)
	assert.InDelta(t, 0.5, sumOf/n, 0.006)
	assert.InDelta(t, 0, product/n, 0.002)
	assert.InDelta(t, 0, seeds/n, 0.002)
	assert.NotEqual(t, endpick.Salt("x"), endpick.Salt("y"))
}
