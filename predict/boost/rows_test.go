package boost

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A feature varies even if only its last row differs.
func TestAFeatureThatVariesLate(t *testing.T) {
	c := newColumn(3*structureRows, 3)
	require.False(t, c.varies())
	c.fine[len(c.fine)-1] = 1
	require.True(t, c.varies())
}

// Priors by hand: never below their floor, nor above the largest target; absent and negative values
// count for nothing.
func TestPriorByHand(t *testing.T) {
	p := prior{columns: []int{1, 2}, weights: []float64{5, 2, 10}, floor: 3}
	nan, inf := math.NaN(), math.Inf(1)
	for _, tc := range []struct{ one, two, want float64 }{
		{0, 0, 5}, {1, 0, 7}, {1, 2, 27}, {nan, 2, 25}, {-9, nan, 5}, {inf, 0, maxTarget}, {0, 1e14, maxTarget}, {0, 1e13, 1e14 + 5}, {1e300, 1e300, maxTarget},
	} {
		require.Equal(t, tc.want, p.at([]float64{99, tc.one, tc.two}), "%+v", tc)
	}
	p.weights[0] = 1
	require.Equal(t, 3.0, p.at([]float64{99, 0, 0}))
	require.Equal(t, 1.0, (&prior{}).at(nil), "there is none")
	f := newPriorFit(3)
	f.add([]int{1, 2}, []float64{99, -9, nan}, 1, 1, 1)
	require.Equal(t, []float64{1, 0, 0}, f.row, "nor in a fit")
	f.add([]int{1, 2}, []float64{99, 1e300, 1e300}, 1, 1, 1)
	require.Equal(t, []float64{1, maxTarget, maxTarget}, f.row, "products stay finite")
}

// A prior equals that of a twin which solves each pass from the same rows by itself.
func TestPriorEqualsItsNaiveTwin(t *testing.T) {
	whole := func(n int, f func(int)) {
		for i := range n {
			f(i)
		}
	}
	for seed := range uint64(5) {
		for _, rows := range []int{40, 900, 5000} {
			d := randomData(seed, rows, 4)
			for i := range rows / 20 {
				d.Y[i*20] /= 50 // the passes give these less weight
			}
			columns, sorted := []int{0, 2}, sampled(d.Y)
			low, _ := ordinary(sorted)
			want := prior{columns: columns, floor: low / 10}
			for pass, rowsOf := range []func(int, func(int)){sampleRows, sampleRows, sampleRows, whole} {
				f, last := newPriorFit(3), want
				rowsOf(rows, func(i int) {
					row, y, weight, scale := d.X[i*4:][:4], d.Y[i], d.W[i], d.Y[i]
					if pass == 0 {
						scale = max(y, sorted[len(sorted)/2])
					} else {
						weight *= math.Pow(min(1, 3*y/last.at(row)), 4)
					}
					f.add(columns, row, y, weight, scale)
				})
				want.weights = f.solve()
			}
			got := fitPrior(columns, d.X, 4, d.Y, d.W)
			require.InDeltaSlice(t, want.weights, got.weights, 1e-6)
			require.Equal(t, want.floor, got.floor)
		}
	}
}

// A feature's cuts depend on its values, not on how many rows lack it: a rare feature is cut as
// finely as if the other rows did not exist.
func TestAbsentRowsMoveNoCut(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, there := range []int{1, 50, 600, 900} {
		for _, absent := range []int{1, 100, 1000} { // fewer than twice the sample that determines the range: all are in it
			var without, with, infinite []float64
			for len(with) < there+absent {
				v, odd := math.NaN(), math.Inf(1)
				if rng.IntN(there+absent-len(with)) < there-len(without) {
					v = math.Exp(2 * rng.NormFloat64())
					odd = v
					without = append(without, v)
				}
				with, infinite = append(with, v), append(infinite, odd)
			}
			qs, cuts := makeQuantisers(with, 1)
			want, wantCuts := makeQuantisers(without, 1)
			require.Equal(t, want, qs)
			require.Equal(t, wantCuts, cuts, "%d rows, and %d that lack it", there, absent)
			// Infinite values fall into the last cell and do not move the others.
			qs, _ = makeQuantisers(infinite, 1)
			require.Equal(t, want, qs)
			require.Equal(t, cellCount-1, qs[0].cell(math.Inf(1)))
		}
	}
}

// Each row counts in its own leaf, whatever the number of rows: what is processed four rows at a
// time equals a plain loop. The numbers are chosen so that no sum is rounded.
func TestRowsCountInTheirLeaves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "rows")
		at := rapid.SliceOfN(rapid.IntRange(0, treeLeafs-1), n, n).Draw(t, "leaves")
		eighths := rapid.Map(rapid.IntRange(-80, 80), func(i int) float64 { return float64(i) / 8 })
		r := rapid.SliceOfN(eighths, n, n).Draw(t, "residuals")
		w := rapid.SliceOfN(rapid.Map(rapid.IntRange(1, 16), func(i int) float64 { return float64(i) / 4 }), n, n).Draw(t, "weights")
		clip := float64(rapid.IntRange(1, 12).Draw(t, "clip"))
		words := make([]uint64, (n+laneRows-1)/laneRows)
		for i, leaf := range at {
			words[i/laneRows] |= uint64(leaf) << (16 * (i % laneRows))
		}

		var want [treeLeafs]leafSum
		for i, leaf := range at {
			want[leaf].residuals += max(-clip, min(r[i], clip)) * w[i]
			want[leaf].weight += w[i]
		}
		require.Equal(t, want, leafSums(words, r, w, clip))

		var tr tree
		for a := range tr.leaf {
			tr.leaf[a] = float32(a-20) / 4
		}
		left, sum := make([]float64, n), 0.0
		for i, leaf := range at {
			left[i] = r[i] - float64(tr.leaf[leaf])
			sum += math.Abs(left[i]) * w[i]
		}
		require.Equal(t, sum, subtract(&tr, words, r, w))
		require.Equal(t, left, r)
	})
}

// Values two percent apart fall into different cells, from the lowest twentieth up, also in a tail
// much longer than the rest: a prompt of a hundred times the usual length differs from one of fifty
// times.
func TestCellsTellValuesApart(t *testing.T) {
	for name, ordinary := range map[string]func(*rand.Rand) float64{
		"even":          (*rand.Rand).Float64,
		"far from zero": func(r *rand.Rand) float64 { return 1e6 + 50*r.Float64() },
		"below zero":    func(r *rand.Rand) float64 { return -3 - r.Float64() },
		"exponential":   (*rand.Rand).ExpFloat64,
		"lognormal":     func(r *rand.Rand) float64 { return math.Exp(2 * r.NormFloat64()) },
		"counts":        func(r *rand.Rand) float64 { return float64(r.IntN(8)) },
	} {
		rng := rand.New(rand.NewPCG(3, 4))
		var sample []float64
		for range 600 { // few enough that all are sampled
			sample = append(sample, ordinary(rng))
		}
		least, most := slices.Min(sample), slices.Max(sample)
		tail := least + 40*(most-least)
		sample[300] = tail
		sample[301] = least + 1e15*(most-least) // garbage
		qs, _ := makeQuantisers(sample, 1)
		q := &qs[0]
		slices.Sort(sample)
		first, _ := slices.BinarySearch(sample, math.Nextafter(q.low, math.Inf(1)))
		above := sample[first:]
		require.LessOrEqual(t, q.low, sample[2], name)
		apart := 0
		for d := above[len(above)/20] - q.low; q.low+d*1.02 <= tail; d *= 1.02 {
			a, b := q.low+d, q.low+d*1.02
			require.Less(t, q.cell(a), q.cell(b), "%s: %v and %v", name, a, b)
			apart++
		}
		require.Greater(t, apart, 150, name)
	}
}
