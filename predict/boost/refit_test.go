package boost

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// A refit computes its prior from its own data and ignores unusable rows.
func TestRefitIsOfItsData(t *testing.T) {
	config := Config{Features: 3, Trees: 8, Prior: []int{0, 1}}
	m := fit(t, config, randomData(1, 500, 3))
	other := randomData(2, 400, 3)
	for i := range other.Y {
		other.Y[i] *= 7
	}
	other.W = nil
	again, err := m.Refit(other)
	require.NoError(t, err)
	anew := fit(t, config, other)
	require.Equal(t, anew.prior, again.prior)
	require.Equal(t, anew.base, again.base)

	spoiled := Data{X: other.X[:len(other.X):len(other.X)], Y: other.Y[:len(other.Y):len(other.Y)]}
	for _, bad := range []float64{math.NaN(), -1, 0, math.Inf(1)} {
		spoiled.X = append([]float64{1, 2, 3}, spoiled.X...)
		spoiled.Y = append([]float64{bad}, spoiled.Y...)
	}
	same, err := m.Refit(spoiled)
	require.NoError(t, err)
	require.Equal(t, 4, same.Skipped())
	same.skipped = 0
	require.Equal(t, modelBytes(t, again), modelBytes(t, same))
}

// A weight beyond the bound for targets is as unusable as NaN.
func TestWeightsAreBounded(t *testing.T) {
	for w, skipped := range map[float64]int{0: 1, -1: 1, math.Inf(1): 1, math.NaN(): 1, maxTarget * 2: 1, maxTarget: 0, 1e-300: 0} {
		m := fit(t, Config{Features: 1}, Data{X: []float64{1, 1}, Y: []float64{5, 5}, W: []float64{1, w}})
		require.Equal(t, skipped, m.Skipped(), "%v", w)
		require.InDelta(t, 5, predictOne(t, m, 1), 1e-9)
	}
}

// An update moves, in each tree, the leaf that its row reaches, and no other.
func TestUpdateMovesWhatItReaches(t *testing.T) {
	d := randomData(3, 600, 3)
	m := fit(t, Config{Features: 3, Trees: 8}, d)
	row := d.X[:3]
	moved, err := m.Update(Data{X: row, Y: []float64{3 * predictOne(t, m, row...)}})
	require.NoError(t, err)
	for i := range m.trees {
		changed := 0
		for a, v := range m.trees[i].leaf {
			if v != moved.trees[i].leaf[a] {
				changed++
				require.Greater(t, moved.trees[i].leaf[a], v)
			}
		}
		require.Equal(t, 1, changed, "tree %d", i)
	}
}

// The caller may change what Linear returns.
func TestLinearIsACopy(t *testing.T) {
	d := randomData(4, 50, 2)
	m := fit(t, Config{Features: 2, Prior: []int{1, 0}}, d)
	columns, weights := m.Linear()
	require.Equal(t, []int{1, 0}, columns)
	want := append([]float64(nil), weights...)
	columns[0] = 7
	clear(weights)
	columns, weights = m.Linear()
	require.Equal(t, []int{1, 0}, columns)
	require.Equal(t, want, weights)
	require.InDelta(t, predictOne(t, m, 3, 5), weights[0]+weights[1]*5+weights[2]*3, 1e-9*predictOne(t, m, 3, 5))
}

// A target is usable if both it and its inverse are within the bound.
func TestTargetsAreBounded(t *testing.T) {
	for y, skipped := range map[float64]int{
		0: 1, -1: 1, math.Inf(1): 1, math.NaN(): 1, maxTarget: 0, maxTarget * 2: 1, 1 / maxTarget: 0, 0.5 / maxTarget: 1, 5e-324: 1,
	} {
		m := fit(t, Config{Features: 1}, Data{X: []float64{1, 1}, Y: []float64{5, y}})
		require.Equal(t, skipped, m.Skipped(), "%v", y)
	}
}

// Rows and Skipped count the rows of the latest fit, refit or update, not those of earlier
// ones.
func TestRowsAreTheModelsOwn(t *testing.T) {
	spoil := func(d Data, n int) Data {
		y := append([]float64(nil), d.Y...)
		for i := range n {
			y[3*i] = math.NaN()
		}
		return Data{X: d.X, Y: y, W: d.W}
	}
	check := func(rows, skipped int, m *Model, err error) *Model {
		require.NoError(t, err)
		require.Equal(t, []int{rows - skipped, skipped}, []int{m.Rows(), m.Skipped()})
		return m
	}
	first, next := randomData(1, 300, 3), randomData(2, 400, 3)
	for _, skipped := range [][2]int{{0, 0}, {7, 0}, {0, 9}, {7, 9}} {
		m, err := Fit(Config{Features: 3, Trees: 5, Prior: []int{0}}, spoil(first, skipped[0]))
		check(300, skipped[0], m, err)
		again, err := m.Refit(spoil(next, skipped[1]))
		check(400, skipped[1], again, err)
		updated, err := m.Update(spoil(next, skipped[1]))
		check(400, skipped[1], updated, err)
		check(300, skipped[0], m, nil)
	}
}
