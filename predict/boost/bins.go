package boost

import (
	"math"
	"math/bits"
	"slices"
)

// A feature value becomes a bin in two steps. First a cell: the leading bits of the float x − low,
// so that cells are narrow where values are small and about equal in relative width. How many bits,
// and so how many cells per octave, depends on the octaves that the values span: a share of [0.1,
// 1] gets cells of 0.1 %, a prompt length of 1 %. Then a table maps the cell to one of at most 127
// bins. Cuts between bins lie on cell borders only, so that binning is one subtraction, one shift
// and one load, and still the same as comparing floats with the cuts.
//
// A fit looks for its tests among the cuts of up to 497 fine bins; the model keeps only the cuts
// that it tests.

const (
	maxFeatures = 32
	maxBins     = 128 // bin 0 is for absent values (NaN); a bin fits seven bits, see block
	cellCount   = 2048
	maxOctaves  = 24
	// binSample is how many values are sampled to tell a feature's ordinary range from its
	// outliers.
	binSample = 1024
)

// A quantiser turns the values of one feature into bins. It is immutable once made.
type quantiser struct {
	low   float64
	base  int64 // the float bits of the border below cell 1, shifted
	shift uint8
	cuts  []uint16
	bins  [cellCount + 1]uint8 // by cell; the last entry is for NaN
}

// cell returns the cell of x: 0 for everything below the lowest border, cellCount for NaN.
func (q *quantiser) cell(x float64) int {
	d := x - q.low
	if d != d {
		return cellCount
	}
	return int(max(0, min(int64(math.Float64bits(d))>>(q.shift&63)-q.base, cellCount-1)))
}

func (q *quantiser) bin(x float64) uint8 { return q.bins[q.cell(x)] }

// setCuts fills the table from ascending cells; bin i starts at cuts[i-2], bin 1 at the bottom.
func (q *quantiser) setCuts(cuts []uint16) {
	q.cuts = cuts
	b, next := uint8(1), 0
	for c := range cellCount {
		for next < len(cuts) && int(cuts[next]) <= c {
			next++
			b++
		}
		q.bins[c] = b
	}
	q.bins[cellCount] = 0
}

// setRange places the cells for ascending values. Garbage in one value in 500 at either end does
// not move them far: a tail is resolved up to 64 times the ordinary largest value.
func (q *quantiser) setRange(sample []float64, largest float64) {
	n := len(sample)
	q.low = sample[n/500]
	top := min(largest, (sample[n-1-n/500]-q.low)*64+q.low) - q.low
	top = min(max(top, 0x1p-200), 0x1p900)
	// The lowest twentieth of the values above low share a cell if the octaves do not reach them.
	first, _ := slices.BinarySearch(sample, math.Nextafter(q.low, math.Inf(1)))
	bottom := top
	if above := sample[first:]; len(above) > 0 {
		bottom = above[len(above)/20] - q.low
	}
	exponent := func(v float64) int64 { return int64(math.Float64bits(v) >> 52) }
	octaves := max(1, min(exponent(top)-exponent(bottom)+2, maxOctaves))
	bitsPerOctave := bits.Len64(uint64((cellCount-1)/octaves)) - 1
	q.shift = uint8(52 - bitsPerOctave)
	q.base = (exponent(top)+1)<<bitsPerOctave - (cellCount - 1) - 1
}

// makeQuantisers makes quantisers without cuts, and the cells at which a fit may cut each feature:
// half of the cuts by quantile, which separates common values, and the rest evenly over the
// octaves, which separates the tail.
func makeQuantisers(x []float64, features int) (qs []quantiser, cuts [][]uint16) {
	qs, cuts = make([]quantiser, features), make([][]uint16, features)
	rows := len(x) / features
	step := max(1, rows/binSample)
	sample := make([]float64, 0, binSample+1)
	counts := make([]int32, cellCount+1)
	for f := range qs {
		q := &qs[f]
		sample = sample[:0]
		for i := 0; i < rows && len(sample) < binSample; i += step {
			if v := x[i*features+f]; !math.IsNaN(v) && !math.IsInf(v, 0) {
				sample = append(sample, v)
			}
		}
		if len(sample) == 0 {
			sample = append(sample, 0)
		}
		slices.Sort(sample)
		largest := sample[len(sample)-1]
		for i := f; i < len(x); i += features {
			if v := x[i]; v > largest && v <= math.MaxFloat64 {
				largest = v
			}
		}
		q.setRange(sample, largest)
		clear(counts)
		for i := f; i < len(x); i += features {
			counts[q.cell(x[i])]++
		}
		q.setCuts(nil)
		cuts[f] = chooseCuts(counts[:cellCount], rows-int(counts[cellCount]), fineBins-2)
	}
	return qs, cuts
}

// chooseCuts returns the cells at which bins 2, 3, … start, no more than most.
func chooseCuts(counts []int32, total, most int) []uint16 {
	cuts := make([]uint16, 0, most)
	for step := 1; ; step++ {
		if cuts, ok := cutsEvery(cuts, counts, total, step); ok {
			return cuts
		}
	}
}

// cutsEvery cuts wherever a share of the rows, or a few rows and step cells, lie behind the last
// cut. It returns false if that makes too many cuts.
func cutsEvery(cuts []uint16, counts []int32, total, step int) ([]uint16, bool) {
	const few = 5000 // one row in few
	quantiles := cap(cuts) * 4 / 5
	since, last := 0, 0
	for c, n := range counts {
		if n == 0 {
			continue
		}
		if since > 0 && (since*quantiles >= total || since*few >= total && c-last >= step) {
			if len(cuts) == cap(cuts) {
				return nil, false
			}
			cuts = append(cuts, uint16(c))
			since, last = 0, c
		}
		since += int(n)
	}
	return cuts, true
}
