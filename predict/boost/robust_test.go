package boost

import (
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/require"
)

// spoiled replaces some targets, evenly spaced.
func spoiled(d Data, count int, bad float64) Data {
	y := append([]float64(nil), d.Y...)
	for i := range count {
		y[(i*len(y)+len(y)/3)/count%len(y)] = bad
	}
	return Data{X: d.X, Y: y, W: d.W}
}

// A few absurd targets cost a model next to nothing, whatever they are, with and without a prior, in a sample of any
// size. Before a target counted for an ordinary row at most, one of 50 µs among 60 of 100 ms took the error from 15 % to
// 150 %, and two of 10^14 among a hundred to 35,000 %.
//
// Nor does one target in twenty of a small sample that is short but plausible, if there are too few rows for trees,
// which could correct it: answers from another party's cache. They alone would make up most of the relative error, so a
// prior fitted to all of it would never notice the others.
func TestAFewStrangeTargetsChangeLittle(t *testing.T) {
	absurd := []float64{5e-5, 1e-14, 1e6, 1e14} // a cached answer, a clock that was set
	short := []float64{5e-5, 0.1, 1, 3}         // ordinary ones are at least 20
	first := []int{0, 1, 2}
	test := randomData(99, 3000, 5)
	for _, tc := range []struct {
		priors  [][]int
		rows    []int
		strange []float64
		oneIn   int // 0: one of all
		factor  float64
		more    float64
	}{
		{[][]int{first, nil}, []int{25, 60, 100, 300, 1000, 5000}, absurd, 0, 1.35, 0.01},
		{[][]int{first, nil}, []int{25, 60, 100, 300, 1000, 5000}, absurd, 50, 1.6, 0.05},
		{[][]int{first}, []int{60, 90}, short, 20, 1.6, 0},
	} {
		for _, prior := range tc.priors {
			for _, rows := range tc.rows {
				d, config := randomData(5, rows, 5), Config{Features: 5, Prior: prior}
				clean := meanError(t, rig.Must(Fit(config, d)), test)
				count := 1
				if tc.oneIn > 0 {
					count = max(1, rows/tc.oneIn)
				}
				for _, v := range tc.strange {
					off := meanError(t, rig.Must(Fit(config, spoiled(d, count, v))), test)
					require.Less(t, off, tc.factor*clean+tc.more, "%d of %v among %d rows, prior %v", count, v, rows, prior)
				}
			}
		}
	}
}

// Residuals beyond a factor of e³ of the ordinary ones, in either direction, are cut off; the rest
// only move the mean. The ordinary residuals here are 10 and 14, so that the mean reaches from -2 to 26.
func TestWhatIsFarOffIsCutOff(t *testing.T) {
	residuals, weights := []float64{}, []float64{}
	for i := range 100 {
		residuals, weights = append(residuals, float64(10+i%2*4)), append(weights, 1)
	}
	strange := map[float64]float64{-9: 7, 0: 7, 6.5: 7, 7.5: 7.5, 16.5: 16.5, 17.5: 17, 24: 17, 99: 17}
	mean := 1200.0
	for _, v := range []float64{-9, 0, 6.5, 7.5, 16.5, 17.5, 24, 99} {
		residuals, weights = append(residuals, v), append(weights, 1)
		mean += max(-2, min(v, 26))
	}
	mean /= 108
	was := append([]float64(nil), residuals...)
	var m Model
	m.centre(residuals, weights)
	require.InDelta(t, mean, m.base, 1e-12)
	for i, v := range was {
		if cut, ok := strange[v]; ok {
			v = cut
		}
		require.InDelta(t, v-mean, residuals[i], 1e-12, "%v", was[i])
	}
}
