package boost

// What a fit reads of its rows: every value as a fine bin, and those again as coarse bins, of which there are few enough
// to count the rows of a node in each. The best of the coarse tests is then made a fine one, see search.go.

const (
	// coarseBins is how many coarse bins a feature has at most, the one for absent values among them.
	coarseBins = 32
	// maxShift is how many fine bins share a coarse one at most, to the power of two.
	maxShift  = 4
	fineBins  = (coarseBins-1)<<maxShift + 1
	laneRows  = 4
	highLanes = 0x8000800080008000
	lowLanes  = 0x0001000100010001
	// noLane is a threshold that no bin reaches.
	noLane = 0x7fff
)

// A column is one feature of all rows.
type column struct {
	bins  int      // fine bins, the one for absent values among them
	shift uint     // as many fine bins share a coarse one, to the power of two
	fine  []uint16 // by row
	words []uint64 // the same, four rows to a word, each with the top bit set
}

// newColumn returns a column of so many bins, with every row in the first.
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

// varies tells whether a test of the feature can part any rows.
func (c *column) varies() bool {
	for _, bin := range c.fine {
		if bin != c.fine[0] {
			return true
		}
	}
	return false
}

// coarse returns the coarse bin of a fine one. Absent values stay by themselves.
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

// fineColumns bins rows for a fit, by the cells at which they may be cut.
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

// tests are those of a tree, a feature and the lowest bin that passes for each level.
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
