package boost

import (
	"math"
	"slices"
)

// Growing one oblivious tree. For every level, each node has a histogram of its rows by feature and
// coarse bin; the test that reduces the squared error most, summed over all nodes, becomes the
// level's. A histogram cell is one machine word: the sum of the residuals as a fixed-point number
// in the upper bits, the count of rows in the lower, so that a row costs one addition per feature,
// sums do not depend on their order, and a sibling's histogram is a difference.

const (
	countBits = 20
	countMask = 1<<countBits - 1
	// residualBits limits a fixed-point residual, so that a million of them fit above the count.
	residualBits = 19
	// structureRows is the most rows that choose a tree's tests; its leaves are then estimated
	// from all rows.
	structureRows = 10000
	// fewestRows is the fewest rows that choose a tree's tests. All do if there are at most twice
	// as many.
	fewestRows = 256
	// minNodeRows is the smallest node that counts in the choice of a test.
	minNodeRows = 8
	// rowsPerLeaf is the fewest rows per leaf: a tree has fewer levels if fewer rows choose its
	// tests.
	rowsPerLeaf = 16
)

// A histogram has coarseBins cells for each live feature.
type histogram []int64

// A sampledRow is a row that takes part in choosing the tests of one tree.
type sampledRow struct {
	row      int32
	residual int32
}

// packed is what a row adds to a cell.
func (r sampledRow) packed() int64 { return int64(r.residual)<<countBits + 1 }

// A node is a range of the sampled rows.
type node struct {
	start, end int
	total      int64 // a cell that sums all of its rows
	hist       histogram
}

// A grower holds what all trees of a fit share.
type grower struct {
	columns []column
	coarse  []int   // by feature: number of coarse bins
	live    []int   // the features that are not the same in all rows
	stride  int     // bytes per row in byRow
	byRow   []uint8 // the coarse bins of a row's live features side by side, for histograms
	inverse []float64
	rows    []sampledRow
	scratch []sampledRow
	nodes   []node
	next    []node
	hists   []int64 // of all nodes, one after the other
	gains   [max(coarseBins, 2<<maxShift)]float64
	near    [2 << maxShift]int64
	used    []used // by feature
}

func newGrower(columns []column, rows int, shrinkage float64) *grower {
	k := len(columns)
	g := &grower{
		columns: columns, coarse: make([]int, k), used: make([]used, k),
	}
	for f := range columns {
		c := &columns[f]
		g.coarse[f] = c.coarse(c.bins-1) + 1
		if c.varies() {
			g.live = append(g.live, f)
		}
	}
	g.stride = (len(g.live) + 3) &^ 3
	g.byRow = make([]uint8, rows*g.stride)
	for place, f := range g.live {
		c := &columns[f]
		for i, bin := range c.fine {
			g.byRow[i*g.stride+place] = uint8(c.coarse(int(bin)))
		}
	}
	g.inverse = make([]float64, min(rows, structureRows)+2)
	for i := range g.inverse {
		g.inverse[i] = 1 / (float64(i) + shrinkage)
	}
	g.hists = make([]int64, treeLeafs/2*g.histogramCells())
	return g
}

// histogramCells is the length of a node's histogram.
func (g *grower) histogramCells() int { return g.stride * coarseBins }

func (g *grower) histogram(i int) histogram {
	n := g.histogramCells()
	return g.hists[i*n : (i+1)*n]
}

// golden shifts the row sample from tree to tree, so that all rows are used in turn.
const golden = 0.6180339887498949

// sample takes every n-th row, by weight, into g.rows with its clipped residual.
func (g *grower) sample(r, cumulated []float64, clip float64, tree int) {
	n := len(r)
	total := cumulated[n-1]
	rate := float64(min(structureRows, max(n/2, fewestRows))) / total
	offset := float64(tree) * golden
	offset -= math.Floor(offset)
	scale := (1 << residualBits) / clip
	g.rows = g.rows[:0]
	each := 1 / rate
	next := (1 - offset) * each // the running sum at which the next row is taken
	for i, v := range r {
		if cumulated[i] < next {
			continue
		}
		next = (math.Floor(cumulated[i]*rate+offset) + 1 - offset) * each
		if len(g.rows) == len(g.inverse)-2 {
			break
		}
		if math.Abs(v) > clip {
			v = math.Copysign(clip, v)
		}
		g.rows = append(g.rows, sampledRow{int32(i), int32(v * scale)})
	}
}

// cumulate returns the running sums of weights.
func cumulate(w []float64) []float64 {
	sums := make([]float64, len(w))
	total := 0.0
	for i, v := range w {
		total += v
		sums[i] = total
	}
	return sums
}

// grow chooses the tests of a tree from g.rows.
func (g *grower) grow() (t tests) {
	root := node{0, len(g.rows), 0, g.histogram(0)}
	g.fill(&root)
	g.nodes = append(g.nodes[:0], root)
	hists := 1
	for level := range treeDepth {
		feature, bin, gain := 0, 0, 0.0
		if level == 0 || rowsPerLeaf<<(level+1) <= len(g.rows) {
			feature, bin, gain = g.best()
		}
		if gain <= 0 {
			for ; level < treeDepth; level++ {
				t.feature[level], t.bin[level] = 0, noLane
			}
			return t
		}
		g.used[feature].add(bin)
		t.feature[level], t.bin[level] = uint8(feature), uint16(bin)
		if level == treeDepth-1 {
			break
		}
		g.next = g.next[:0]
		for _, nd := range g.nodes {
			hists = g.split(nd, &g.columns[feature], bin, hists)
		}
		g.nodes, g.next = g.next, g.nodes
	}
	return t
}

// split splits a node's rows, appends its children to g.next and returns the number of histograms
// in use. It drops children that are too small to matter.
func (g *grower) split(nd node, c *column, bin, hists int) int {
	rows := g.rows[nd.start:nd.end]
	right := slices.Grow(g.scratch[:0], len(rows))[:len(rows)]
	g.scratch = right
	l, r := 0, 0
	for _, v := range rows {
		// Write to both sides and advance one: to a branch predictor, the side is random.
		rows[l], right[r] = v, v
		above := int(uint32(bin-1-int(c.fine[v.row])) >> 31)
		l += 1 - above
		r += above
	}
	copy(rows[l:], right[:r])
	small := node{start: nd.start, end: nd.start + l}
	large := node{start: nd.start + l, end: nd.end}
	if l > r {
		small, large = large, small
	}
	large.hist, large.total = nd.hist, nd.total
	switch n := small.end - small.start; {
	case n == 0:
	case n < minNodeRows:
		for _, v := range g.rows[small.start:small.end] {
			p := v.packed()
			large.total -= p
			for place, b := range g.byRow[int(v.row)*g.stride:][:g.stride] {
				large.hist[place*coarseBins+int(b)] -= p
			}
		}
	default:
		small.hist = g.histogram(hists)
		hists++
		g.fill(&small)
		large.total -= small.total
		take := small.hist[:len(large.hist)]
		for i := range large.hist {
			large.hist[i] -= take[i]
		}
		g.next = append(g.next, small)
	}
	if large.end-large.start >= minNodeRows {
		g.next = append(g.next, large)
	}
	return hists
}

// fill computes a node's histogram and total.
func (g *grower) fill(nd *node) {
	clear(nd.hist)
	for _, v := range g.rows[nd.start:nd.end] {
		p := v.packed()
		nd.total += p
		bins, cells := g.byRow[int(v.row)*g.stride:][:g.stride], nd.hist
		for len(bins) >= 4 {
			// Columns that pad the stride count into cells that are never read.
			b, h := (*[4]uint8)(bins), (*[4 * coarseBins]int64)(cells)
			h[b[0]%coarseBins] += p
			h[coarseBins+int(b[1]%coarseBins)] += p
			h[2*coarseBins+int(b[2]%coarseBins)] += p
			h[3*coarseBins+int(b[3]%coarseBins)] += p
			bins, cells = bins[4:], cells[4*coarseBins:]
		}
	}
}
