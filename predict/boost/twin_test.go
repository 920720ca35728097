package boost

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// naivePredict is Predict with plain loops over float features: it compares each with the border of
// the bin in the test and adds the leaves one by one.
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
	return exp(m.base+float64(sum)) * m.prior.at(row)
}

// predictLikeTwin predicts a batch, and requires what the twin predicts, to the last bit.
func predictLikeTwin(t require.TestingT, m *Model, x []float64) []float64 {
	k := m.config.Features
	y := make([]float64, len(x)/k)
	require.NoError(t, m.Predict(y, x))
	for i := range y {
		require.Equal(t, naivePredict(m, x[i*k:(i+1)*k]), y[i], "row %d", i)
		require.False(t, math.IsNaN(y[i]))
	}
	return y
}

// border returns the smallest x − low that lies in the cell.
func (q *quantiser) border(cell int) float64 {
	return math.Float64frombits(uint64(q.base+int64(cell)) << q.shift)
}

// naiveTest reports whether a value's bin is at or above a threshold.
func naiveTest(q *quantiser, bin int, x float64) bool {
	switch {
	case math.IsNaN(x), bin == maxBins, bin >= 2 && bin-2 >= len(q.cuts):
		return false
	case bin <= 1:
		return true
	}
	return x-q.low >= q.border(int(q.cuts[bin-2]))
}

// anyFloat draws plausible feature values and implausible ones.
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
		m := rig.Must(Fit(config, data))
		n := rapid.OneOf(rapid.IntRange(0, 20), rapid.SampledFrom([]int{63, 64, 65, 80, 81, 130})).Draw(t, "batch")
		x := make([]float64, n*k)
		for i := range x {
			x[i] = anyFloat(t, "x")
			if rapid.IntRange(0, 2).Draw(t, "seen") == 0 {
				x[i] = data.X[i%len(data.X)] // borders lie near observed values
			}
		}
		predictLikeTwin(t, m, x)
	})
}

func TestBinIsTheNumberOfBordersBelow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(t, "n")
		x := make([]float64, n)
		for i := range x {
			x[i] = anyFloat(t, "seen")
		}
		qs, cuts := makeQuantisers(x, 1)
		q, fine := qs[0], cuts[0]
		require.LessOrEqual(t, len(fine), fineBins-2)
		column := fineColumns(qs, cuts, x)[0]
		q.setCuts(fine[:min(len(fine), maxBins-2)])
		below := func(v float64, cuts []uint16) int {
			if math.IsNaN(v) {
				return 0
			}
			n := 1
			for _, c := range cuts {
				if v-q.low >= q.border(int(c)) {
					n++
				}
			}
			return n
		}
		for i, v := range x {
			require.Equal(t, below(v, fine), int(column.fine[i]), "value %v", v)
		}
		for _, v := range append(x, anyFloat(t, "new")) {
			require.Equal(t, below(v, q.cuts), int(q.bin(v)), "value %v", v)
		}
		a, b := anyFloat(t, "a"), anyFloat(t, "b")
		if a <= b {
			require.LessOrEqual(t, q.bin(a), q.bin(b), "bins keep the order")
		}
	})
}

// A coarse bin is a run of fine ones; all but the last have the same length, and there are few.
func TestCoarseBins(t *testing.T) {
	for bins := 2; bins <= fineBins; bins++ {
		c := newColumn(1, bins)
		require.LessOrEqual(t, c.shift, uint(maxShift))
		require.Less(t, c.coarse(bins-1), coarseBins)
		require.Equal(t, bins, c.first(c.coarse(bins-1)+1))
		for bin := range bins {
			at := c.coarse(bin)
			require.LessOrEqual(t, c.first(at), bin)
			require.Less(t, bin, c.first(at+1))
			require.Equal(t, at, c.coarse(c.first(at)))
		}
	}
}

// naiveGrow chooses the tests of a tree from scratch at every level, with a separate list of
// rows for every node.
func naiveGrow(g *grower) (t tests) {
	nodes := [][]sampledRow{g.rows}
	error2 := func(rows []sampledRow) float64 {
		s := int64(0)
		for _, r := range rows {
			s += int64(r.residual)
		}
		return float64(s) * float64(s) * g.inverse[len(rows)]
	}
	part := func(rows []sampledRow, f, bin int) (below, above []sampledRow) {
		for _, r := range rows {
			if int(g.columns[f].fine[r.row]) < bin {
				below = append(below, r)
			} else {
				above = append(above, r)
			}
		}
		return below, above
	}
	used := append([]used(nil), g.used...)
	room := func(f, bin int) bool {
		n := 0
		for b, is := range used[f].bins {
			if is && b > 1 {
				n++
			}
		}
		return used[f].bins[bin] || n < 126
	}
	for level := range treeDepth {
		best, at, base := 0.0, 0, 0.0
		for _, n := range nodes {
			base += error2(n)
		}
		gainOf := func(f, bin int) float64 {
			gain := 0.0
			for _, n := range nodes {
				below, above := part(n, f, bin)
				gain += error2(below) + error2(above)
			}
			return gain - base
		}
		t.bin[level] = noLane
		for f := range g.columns {
			if leaves := 2 << level; leaves > 2 && len(g.rows) < 16*leaves {
				break
			}
			c := &g.columns[f]
			for b := 1; b < g.coarse[f]; b++ {
				if d := gainOf(f, c.first(b)); d > best && d > math.Abs(base)*1e-9 && room(f, c.first(b)) {
					best, at = d, b
					t.feature[level], t.bin[level] = uint8(f), uint16(c.first(b))
				}
			}
		}
		if best == 0 {
			for ; level < treeDepth; level++ {
				t.feature[level], t.bin[level] = 0, noLane
			}
			return t
		}
		f := int(t.feature[level])
		c := &g.columns[f]
		if at > 1 {
			for bin := c.first(at-1) + 1; bin < c.first(at+1); bin++ {
				if d := gainOf(f, bin); d > best && room(f, bin) {
					best, t.bin[level] = d, uint16(bin)
				}
			}
		}
		used[f].bins[t.bin[level]] = true
		var next [][]sampledRow
		for _, n := range nodes {
			below, above := part(n, f, int(t.bin[level]))
			// The smaller one first, since the sums are formed in that order.
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
	return t
}

func TestGrowEqualsItsNaiveTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 6).Draw(t, "features")
		n := rapid.IntRange(minTreeRows, 2500).Draw(t, "rows")
		data := randomData(rapid.Uint64().Draw(t, "seed"), n, k)
		qs, cuts := makeQuantisers(data.X, k)
		g := newGrower(fineColumns(qs, cuts, data.X), n, 2)
		for f := range g.used { // as if by earlier trees
			for range rapid.SampledFrom([]int{0, 20, 300}).Draw(t, "used") {
				bin := rapid.IntRange(1, g.columns[f].bins-1).Draw(t, "bin")
				if g.used[f].may(bin) {
					g.used[f].add(bin)
				}
			}
		}
		r := make([]float64, n)
		for i, y := range data.Y {
			r[i] = math.Log(y) - 4
		}
		g.sample(r, cumulate(data.W), 2, rapid.IntRange(0, 50).Draw(t, "tree"))
		require.NotEmpty(t, g.rows)
		rows := append([]sampledRow(nil), g.rows...)
		require.Equal(t, naiveGrow(g), g.grow())
		require.ElementsMatch(t, rows, g.rows, "rows are only moved")
	})
}

// However many trees test a feature, the model has no more cuts of it than it has bins, and the
// trees use exactly the chosen ones.
func TestAModelHasRoomForItsCuts(t *testing.T) {
	d := Data{}
	for i := range 4000 {
		x := float64(i)
		d.X = append(d.X, x)
		d.Y = append(d.Y, 2+math.Sin(x/100)+math.Sin(x/170))
	}
	m := rig.Must(Fit(Config{Features: 1, Trees: 300}, d))
	cuts := len(m.quantisers[0].cuts)
	require.LessOrEqual(t, cuts, maxBins-2)
	require.Greater(t, cuts, 100)
	tested := map[uint64]bool{}
	for i := range m.trees {
		for _, at := range m.trees[i].threshold {
			if bin := at & 0xff; bin > 1 && bin < maxBins {
				tested[bin] = true
				require.Less(t, int(bin), cuts+2)
			}
		}
	}
	require.Len(t, tested, cuts)
	off := 0.0
	for i, y := range predictLikeTwin(t, m, d.X) {
		off += math.Abs(math.Log(y / d.Y[i]))
	}
	require.Less(t, off/float64(len(d.Y)), 0.12)
}
