package boost

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/endpick/endpick/internal/portable"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// naivePredict is Predict with plain loops over float features: it compares each with the border of the bin that a test
// names, and adds leaves up one by one.
func naivePredict(m *Model, row []float64) float64 {
	var sum float32
	for i := range m.trees {
		t := &m.trees[i]
		leaf := 0
		for level := range treeDepth {
			f := t.feature[level]
			if naiveTest(&m.quantisers[f], int(t.threshold[level]&0xff), row[f]) {
				leaf |= 1 << level
			}
		}
		sum += t.leaf[leaf]
	}
	return portable.Exp(m.base+float64(sum)) * m.prior.at(row)
}

// naiveTest tells whether a value's bin is at or above a threshold.
func naiveTest(q *quantiser, bin int, x float64) bool {
	switch {
	case math.IsNaN(x), bin == maxBins, bin >= 2 && bin-2 >= len(q.cuts):
		return false
	case bin <= 1:
		return true
	}
	return x-q.low >= q.border(int(q.cuts[bin-2]))
}

// anyFloat draws what features look like, and what they should not.
func anyFloat(t *rapid.T, label string) float64 {
	return rapid.OneOf(
		rapid.Float64Range(0, 1),
		rapid.Float64Range(-50, 50),
		rapid.Map(rapid.Float64Range(0, 14), math.Exp),
		rapid.Map(rapid.IntRange(0, 5), func(i int) float64 { return float64(i) }),
		rapid.Just(math.NaN()),
		rapid.Float64(),
		rapid.SampledFrom([]float64{math.Inf(1), math.Inf(-1), math.MaxFloat64, -math.MaxFloat64, 5e-324, math.Copysign(0, -1)}),
	).Draw(t, label)
}

// randomData has features of all kinds and a target that depends on them.
func randomData(seed uint64, rows, features int) Data {
	rng := rand.New(rand.NewPCG(seed, 0))
	d := Data{X: make([]float64, 0, rows*features), Y: make([]float64, rows), W: make([]float64, rows)}
	for i := range rows {
		y := 20.0
		for f := range features {
			v := 0.0
			switch f % 5 {
			case 0:
				v = math.Exp(rng.NormFloat64() * 2)
			case 1:
				v = rng.Float64()
			case 2:
				v = float64(rng.IntN(6))
			case 3:
				v = rng.NormFloat64()*3 - 1000
			case 4:
				v = 7
			}
			if rng.IntN(40) == 0 {
				v = math.NaN()
			} else if v > 0 {
				y += v * float64(f+1)
			}
			d.X = append(d.X, v)
		}
		d.Y[i] = y * math.Exp(rng.NormFloat64()*0.05)
		d.W[i] = 0.1 + rng.Float64()
	}
	return d
}

func TestPredictEqualsItsNaiveTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 12).Draw(t, "features")
		config := Config{Features: k, Trees: rapid.IntRange(1, 20).Draw(t, "trees")}
		if rapid.Bool().Draw(t, "prior") {
			config.Prior = []int{k / 2}
		}
		data := randomData(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 400).Draw(t, "rows"), k)
		m, err := Fit(config, data)
		require.NoError(t, err)
		n := rapid.IntRange(0, 20).Draw(t, "batch")
		x := make([]float64, n*k)
		for i := range x {
			x[i] = anyFloat(t, "x")
			if rapid.IntRange(0, 2).Draw(t, "seen") == 0 {
				x[i] = data.X[i%len(data.X)] // borders lie near what was seen
			}
		}
		y := make([]float64, n)
		require.NoError(t, m.Predict(y, x))
		for i := range y {
			require.Equal(t, naivePredict(m, x[i*k:(i+1)*k]), y[i], "row %d: to the last bit", i)
			require.False(t, math.IsNaN(y[i]))
		}
	})
}

func TestBinIsTheNumberOfBordersBelow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(t, "n")
		x := make([]float64, n)
		for i := range x {
			x[i] = anyFloat(t, "seen")
		}
		q := makeQuantisers(x, 1)[0]
		require.LessOrEqual(t, len(q.cuts), maxBins-2)
		for _, v := range append(x, anyFloat(t, "new")) {
			want := uint8(0)
			if !math.IsNaN(v) {
				want = 1
				for _, c := range q.cuts {
					if v-q.low >= q.border(int(c)) {
						want++
					}
				}
			}
			require.Equal(t, want, q.bin(v), "value %v", v)
		}
		a, b := anyFloat(t, "a"), anyFloat(t, "b")
		if a <= b {
			require.LessOrEqual(t, q.bin(a), q.bin(b), "bins keep the order")
		}
	})
}

// naiveGrow chooses the tests of a tree from scratch at every level, with the rows of every node in a list of its own.
func naiveGrow(g *grower) (feature [treeDepth]uint8, threshold [treeDepth]int) {
	nodes := [][]sampledRow{g.rows}
	bin := func(r sampledRow, f int) int { return int(g.byRow[int(r.row)*g.stride+f]) }
	error2 := func(rows []sampledRow) float64 {
		s := int64(0)
		for _, r := range rows {
			s += int64(r.residual)
		}
		return float64(s) * float64(s) * g.inverse[len(rows)]
	}
	part := func(rows []sampledRow, f, b int) (below, above []sampledRow) {
		for _, r := range rows {
			if bin(r, f) < b {
				below = append(below, r)
			} else {
				above = append(above, r)
			}
		}
		return below, above
	}
	for level := range treeDepth {
		best := 0.0
		base := 0.0
		for _, n := range nodes {
			base += error2(n)
		}
		threshold[level] = maxBins
		for f := range g.features {
			for b := 1; b < g.binCount[f]; b++ {
				gain := 0.0
				for _, n := range nodes {
					below, above := part(n, f, b)
					gain += error2(below) + error2(above)
				}
				if d := gain - base; d > best && d > math.Abs(base)*1e-9 {
					best, feature[level], threshold[level] = d, uint8(f), b
				}
			}
		}
		var next [][]sampledRow
		for _, n := range nodes {
			below, above := part(n, int(feature[level]), threshold[level])
			// The smaller one first, as the sums are formed in that order.
			if len(below) > len(above) {
				below, above = above, below
			}
			for _, c := range [][]sampledRow{below, above} {
				if len(c) >= minNodeRows {
					next = append(next, c)
				}
			}
		}
		nodes = next
	}
	return feature, threshold
}

func TestGrowEqualsItsNaiveTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 6).Draw(t, "features")
		n := rapid.IntRange(minTreeRows, 300).Draw(t, "rows")
		data := randomData(rapid.Uint64().Draw(t, "seed"), n, k)
		qs := makeQuantisers(data.X, k)
		g := newGrower(qs, data.X, 2)
		g.gained = make([]float64, k)
		cumulated := make([]float64, n)
		total := 0.0
		for i, w := range data.W {
			total += w
			cumulated[i] = total
		}
		r := make([]float64, n)
		for i, y := range data.Y {
			r[i] = math.Log(y) - 4
		}
		g.sample(r, cumulated, 2, rapid.IntRange(0, 50).Draw(t, "turn"))
		require.NotEmpty(t, g.rows)
		rows := append([]sampledRow(nil), g.rows...)
		feature, threshold := naiveGrow(g)
		var tr tree
		g.grow(&tr)
		require.ElementsMatch(t, rows, g.rows, "rows are only moved")
		for level := range treeDepth {
			require.Equal(t, threshold[level], int(tr.threshold[level]&0xff), "level %d", level)
			if threshold[level] < maxBins {
				require.Equal(t, feature[level], tr.feature[level], "level %d", level)
			}
			require.Equal(t, uint64(threshold[level])*lowBits, tr.threshold[level])
		}
	})
}
