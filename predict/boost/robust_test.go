package boost

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// badTargets are labels with causes that no feature shows: a cached answer, a clock that was
// set.
var badTargets = []float64{5e-5, 1e-14, 1e6, 1e14}

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
func TestAFewAbsurdTargetsChangeLittle(t *testing.T) {
	test := randomData(99, 3000, 5)
	for _, prior := range [][]int{{0, 1, 2}, nil} {
		for _, rows := range []int{25, 60, 100, 300, 1000, 5000} {
			d := randomData(5, rows, 5)
			config := Config{Features: 5, Prior: prior}
			clean := meanError(t, fit(t, config, d), test)
			for _, bad := range badTargets {
				one := meanError(t, fit(t, config, spoiled(d, 1, bad)), test)
				require.Less(t, one, 1.35*clean+0.01, "one of %v among %d rows, prior %v", bad, rows, prior)
				some := meanError(t, fit(t, config, spoiled(d, max(1, rows/50), bad)), test)
				require.Less(t, some, 1.6*clean+0.05, "two in a hundred of %v among %d rows, prior %v", bad, rows, prior)
			}
		}
	}
}

// Nor does one target in twenty of a small sample that is short but plausible: answers from another
// party's cache. They alone would make up most of the relative error, so a prior fitted to all of
// it would never notice the others.
func TestAFewShortTargetsChangeLittle(t *testing.T) {
	test := randomData(99, 3000, 5)
	config := Config{Features: 5, Prior: []int{0, 1, 2}}
	for _, rows := range []int{60, 90} { // too few rows for trees, which could correct it
		d := randomData(5, rows, 5)
		clean := meanError(t, fit(t, config, d), test)
		for _, short := range []float64{5e-5, 0.1, 1, 3} { // ordinary ones are at least 20
			some := meanError(t, fit(t, config, spoiled(d, rows/20, short)), test)
			require.Less(t, some, 1.6*clean, "one in twenty of %v among %d rows", short, rows)
		}
	}
}

// Residuals beyond a factor of e³ of the ordinary ones, in either direction, are cut off; the rest
// only move the mean. The ordinary residuals here are 0 and 4, all within the reach of the mean.
func TestWhatIsFarOffIsCutOff(t *testing.T) {
	residuals, weights := []float64{}, []float64{}
	for i := range 100 {
		residuals, weights = append(residuals, float64(i%2*4)), append(weights, 1)
	}
	strange := map[float64]float64{-10: -3, -3.5: -3, -2.5: -2.5, 6.5: 6.5, 7.5: 7, 14: 7}
	mean := 200.0
	for _, v := range []float64{-10, -3.5, -2.5, 6.5, 7.5, 14} {
		residuals, weights = append(residuals, v), append(weights, 1)
		mean += v
	}
	mean /= 106
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

func TestTheZeroModelIsAnErrorAndNoPanic(t *testing.T) {
	var m Model
	require.ErrorIs(t, m.Predict(make([]float64, 1), []float64{1}), ErrShape)
	require.ErrorIs(t, m.Predict(nil, nil), ErrShape)
	for _, d := range []Data{{}, {X: []float64{1}, Y: []float64{1}}, {Y: []float64{1}}} {
		_, err := m.Refit(d)
		require.ErrorIs(t, err, ErrNoData)
	}
	require.Zero(t, m.Trees())
}
