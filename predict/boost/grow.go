package boost

import (
	"math"
)

// Growing one oblivious tree. For every level, each node has a histogram of its rows by feature and bin; the test that
// lowers the squared error most, summed over all nodes, becomes the level's. A histogram cell is one machine word: the
// sum of the residuals as a fixed-point number above, the count of rows in the low bits, so that a row costs one
// addition per feature, sums do not depend on their order, and a sibling is had by subtraction.

const (
	countBits = 20
	countMask = 1<<countBits - 1
	// residualBits bounds a fixed-point residual, so that a million of them fit above the count.
	residualBits = 19
	// structureRows bounds the rows that choose a tree's tests; its leaves are then estimated from all rows.
	structureRows = 10000
	// minNodeRows is the smallest node that has a say in the choice of a test.
	minNodeRows = 8
)

type histogram [maxFeatures * maxBins]int64

// A sampledRow is a row that takes part in choosing the tests of one tree.
type sampledRow struct {
	row      int32
	residual int32
}

// A node is a range of the sampled rows.
type node struct {
	start, end int
	hist       *histogram
}

// A grower holds what stays the same from tree to tree.
type grower struct {
	features int
	stride   int      // bytes to a row in binsByRow
	binCount []int    // by feature
	byRow    []uint8  // the bins of a row side by side, for histograms
	byColumn []uint64 // the bins of a feature side by side, eight rows a word, for finding leaves
	words    int      // words to a feature in byColumn
	inverse  []float64
	rows     []sampledRow
	scratch  []sampledRow
	nodes    []node
	next     []node
	hists    []histogram
	gains    [maxBins]float64
	gained   []float64 // by feature, over all trees
}

func newGrower(qs []quantiser, x []float64, shrinkage float64) *grower {
	k := len(qs)
	n := len(x) / k
	g := &grower{features: k, stride: (k + 3) &^ 3, words: (n + blockRows - 1) / blockRows}
	g.byRow = make([]uint8, n*g.stride)
	g.byColumn = make([]uint64, g.words*k)
	g.binCount = make([]int, k)
	for f := range qs {
		g.binCount[f] = len(qs[f].cuts) + 2
		column := g.byColumn[f*g.words : (f+1)*g.words]
		for i := range column {
			column[i] = highBits
		}
		for i := range n {
			b := qs[f].bin(x[i*k+f])
			g.byRow[i*g.stride+f] = b
			column[i/blockRows] |= uint64(b) << (8 * (i % blockRows))
		}
	}
	g.inverse = make([]float64, min(n, structureRows)+2)
	for i := range g.inverse {
		g.inverse[i] = 1 / (float64(i) + shrinkage)
	}
	g.hists = make([]histogram, treeLeafs/2)
	return g
}

// grow chooses the tests of a tree from g.rows and leaves its leaf values at zero.
func (g *grower) grow(t *tree) {
	root := node{0, len(g.rows), &g.hists[0]}
	g.fill(root)
	g.nodes = append(g.nodes[:0], root)
	used := 1
	for level := range treeDepth {
		feature, threshold, gain := g.best()
		if gain <= 0 {
			for ; level < treeDepth; level++ {
				t.feature[level], t.threshold[level] = 0, maxBins*lowBits // no bin reaches it
			}
			return
		}
		g.gained[feature] += gain
		t.feature[level], t.threshold[level] = uint8(feature), uint64(threshold)*lowBits
		if level == treeDepth-1 {
			return
		}
		g.next = g.next[:0]
		for _, nd := range g.nodes {
			used = g.split(nd, feature, uint8(threshold), used)
		}
		g.nodes, g.next = g.next, g.nodes
	}
}

// split parts a node's rows, appends its children to g.next and returns how many histograms are in use. Children too
// small to matter are left out.
func (g *grower) split(nd node, feature int, threshold uint8, used int) int {
	rows := g.rows[nd.start:nd.end]
	g.scratch = append(g.scratch[:0], rows...)
	l, r := 0, 0
	right := g.scratch
	for _, v := range rows {
		// Write to both sides, advance one: which side is as good as random to a branch predictor.
		rows[l], right[r] = v, v
		below := int(g.byRow[int(v.row)*g.stride+feature]-threshold) >> 7 & 1
		l += below
		r += 1 - below
	}
	copy(rows[l:], right[:r])
	small := node{nd.start, nd.start + l, nil}
	large := node{nd.start + l, nd.end, nil}
	if l > r {
		small, large = large, small
	}
	large.hist = nd.hist
	if n := small.end - small.start; n > 0 {
		if n >= minNodeRows {
			small.hist = &g.hists[used]
			used++
			g.fill(small)
			for f, bins := range g.binCount {
				from := large.hist[f*maxBins : f*maxBins+bins]
				take := small.hist[f*maxBins : f*maxBins+bins]
				for i := range from {
					from[i] -= take[i]
				}
			}
			g.next = append(g.next, small)
		} else {
			for _, v := range g.rows[small.start:small.end] {
				p := int64(v.residual)<<countBits + 1
				for f, b := range g.byRow[int(v.row)*g.stride:][:g.features] {
					large.hist[f*maxBins+int(b)] -= p
				}
			}
		}
	}
	if large.end-large.start >= minNodeRows {
		g.next = append(g.next, large)
	}
	return used
}

// fill computes a node's histogram.
func (g *grower) fill(nd node) {
	h := nd.hist
	for f, bins := range g.binCount {
		clear(h[f*maxBins : f*maxBins+bins])
	}
	for _, v := range g.rows[nd.start:nd.end] {
		p := int64(v.residual)<<countBits + 1
		bins := g.byRow[int(v.row)*g.stride:][:g.stride]
		o := 0
		for len(bins) >= 4 {
			// Columns that pad the stride count into histograms nobody reads.
			h[(o+int(bins[0]))&(len(h)-1)] += p
			h[(o+maxBins+int(bins[1]))&(len(h)-1)] += p
			h[(o+2*maxBins+int(bins[2]))&(len(h)-1)] += p
			h[(o+3*maxBins+int(bins[3]))&(len(h)-1)] += p
			o += 4 * maxBins
			bins = bins[4:]
		}
	}
}

// best returns the test that lowers the squared error most over all nodes; of equals the first.
func (g *grower) best() (feature, threshold int, gain float64) {
	base := 0.0
	for _, nd := range g.nodes {
		total := sum(nd.hist[:g.binCount[0]])
		s := float64(total >> countBits)
		base += float64(s * s * g.inverse[total&countMask])
	}
	for f, bins := range g.binCount {
		if bins <= 2 && !g.hasAbsent(f) {
			continue
		}
		gains := g.gains[:bins]
		clear(gains)
		for _, nd := range g.nodes {
			h := nd.hist[f*maxBins : f*maxBins+bins]
			h = h[:len(gains)]
			left, right := int64(0), sum(h)
			for b := 1; b < len(h); b++ {
				left += h[b-1]
				right -= h[b-1]
				sl, sr := float64(left>>countBits), float64(right>>countBits)
				gains[b] += float64(sl*sl*g.inverse[left&countMask]) + float64(sr*sr*g.inverse[right&countMask])
			}
		}
		for b := 1; b < bins; b++ {
			if d := gains[b] - base; d > gain && d > math.Abs(base)*1e-9 {
				feature, threshold, gain = f, b, d
			}
		}
	}
	return feature, threshold, gain
}

// hasAbsent tells whether any sampled row lacks the feature.
func (g *grower) hasAbsent(f int) bool {
	for _, nd := range g.nodes {
		if nd.hist[f*maxBins] != 0 {
			return true
		}
	}
	return false
}

func sum(h []int64) (s int64) {
	for _, v := range h {
		s += v
	}
	return s
}

// leafNumbers writes the leaf number of every row, eight to a word.
func (g *grower) leafNumbers(t *tree, dst []uint64) {
	var c [treeDepth][]uint64
	for l, f := range t.feature {
		c[l] = g.byColumn[int(f)*g.words : (int(f)+1)*g.words][:len(dst)]
	}
	c0, c1, c2, c3, c4, c5 := c[0][:len(dst)], c[1][:len(dst)], c[2][:len(dst)], c[3][:len(dst)], c[4][:len(dst)], c[5][:len(dst)]
	for i := range dst {
		l := (c0[i] - t.threshold[0]) & highBits >> 7
		l |= (c1[i] - t.threshold[1]) & highBits >> 6
		l |= (c2[i] - t.threshold[2]) & highBits >> 5
		l |= (c3[i] - t.threshold[3]) & highBits >> 4
		l |= (c4[i] - t.threshold[4]) & highBits >> 3
		l |= (c5[i] - t.threshold[5]) & highBits >> 2
		dst[i] = l
	}
}
