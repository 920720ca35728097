package boost

import "slices"

// The rows of a fit, by feature: every value as a fine bin, and again as a coarse bin. There are
// few enough coarse bins to keep a histogram of them for each node. The best coarse test is then
// refined, see search.go.

const (
	// coarseBins is the most coarse bins of a feature, including the one for absent values.
	coarseBins = 32
	// maxShift is the binary logarithm of the most fine bins in a coarse one.
	maxShift  = 4
	fineBins  = (coarseBins-1)<<maxShift + 1
	laneRows  = 4
	highLanes = 0x8000800080008000
	lowLanes  = 0x0001000100010001
	// noLane is a threshold above every bin.
	noLane = 0x7fff
)

// A column is one feature of all rows.
type column struct {
	bins  int      // fine bins, including the one for absent values
	shift uint     // binary logarithm of the fine bins in a coarse one
	fine  []uint16 // by row
	words []uint64 // the same, four rows to a word, each with the top bit set
}

// newColumn returns a column with so many bins, and every row in the first.
func newColumn(rows, bins int) column {
	c := column{bins: bins, fine: make([]uint16, rows)}
	for c.coarse(bins-1) >= coarseBins {
		c.shift++
	}
	return c
}

// pack fills in the words.
func (c *column) pack() {
	c.words = make([]uint64, (len(c.fine)+laneRows-1)/laneRows)
	for i, bin := range c.fine {
		c.words[i/laneRows] |= uint64(bin) << (16 * (i % laneRows))
	}
	for i := range c.words {
		c.words[i] |= highLanes
	}
}

// varies reports whether a test of the feature can split any rows.
func (c *column) varies() bool {
	return slices.ContainsFunc(c.fine, func(bin uint16) bool { return bin != c.fine[0] })
}

// coarse returns the coarse bin of a fine one. Absent values have their own.
func (c *column) coarse(bin int) int {
	if bin == 0 {
		return 0
	}
	return (bin-1)>>c.shift + 1
}

// first returns the first fine bin of a coarse one.
func (c *column) first(coarse int) int {
	if coarse == 0 {
		return 0
	}
	return min((coarse-1)<<c.shift+1, c.bins)
}

// fineColumns bins rows for a fit, by all possible cuts.
func fineColumns(qs []quantiser, cuts [][]uint16, x []float64) []column {
	k := len(qs)
	columns := make([]column, k)
	bins := make([]uint16, cellCount+1)
	for f := range qs {
		q := &qs[f]
		columns[f] = newColumn(len(x)/k, len(cuts[f])+2)
		at, b := 0, uint16(1)
		for c := range cellCount {
			for at < len(cuts[f]) && int(cuts[f][at]) <= c {
				at++
				b++
			}
			bins[c] = b
		}
		bins[cellCount] = 0
		for i := f; i < len(x); i += k {
			columns[f].fine[i/k] = bins[q.cell(x[i])]
		}
		columns[f].pack()
	}
	return columns
}

// modelColumns bins rows as a model does.
func modelColumns(qs []quantiser, x []float64) []column {
	k := len(qs)
	columns := make([]column, k)
	for f := range qs {
		columns[f] = newColumn(len(x)/k, len(qs[f].cuts)+2)
		for i := f; i < len(x); i += k {
			columns[f].fine[i/k] = uint16(qs[f].bin(x[i]))
		}
		columns[f].pack()
	}
	return columns
}

// tests are a tree's tests: for each level a feature and the lowest bin that passes.
type tests struct {
	feature [treeDepth]uint8
	bin     [treeDepth]uint16
}

// leafNumbers writes the leaf number of every row, four to a word.
func leafNumbers(columns []column, t *tests, dst []uint64) {
	var c [treeDepth][]uint64
	var at [treeDepth]uint64
	for l, f := range t.feature {
		c[l] = columns[f].words[:len(dst)]
		at[l] = uint64(t.bin[l]) * lowLanes
	}
	c0, c1, c2, c3, c4, c5 := c[0][:len(dst)], c[1][:len(dst)], c[2][:len(dst)], c[3][:len(dst)], c[4][:len(dst)], c[5][:len(dst)]
	for i := range dst {
		l := (c0[i] - at[0]) & highLanes >> 15
		l |= (c1[i] - at[1]) & highLanes >> 14
		l |= (c2[i] - at[2]) & highLanes >> 13
		l |= (c3[i] - at[3]) & highLanes >> 12
		l |= (c4[i] - at[4]) & highLanes >> 11
		l |= (c5[i] - at[5]) & highLanes >> 10
		dst[i] = l
	}
}
