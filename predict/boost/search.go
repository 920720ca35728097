package boost

import "math"

// A level's test is searched twice: first among the borders of coarse bins, by the histograms of
// all nodes, then among the fine ones on both sides of the best, for which the rows there are
// counted again. That finds nearly the same test as a search among all fine borders, in the time of
// one among the coarse.

// used has the tests of one feature that the model has so far.
type used struct {
	bins  [fineBins]bool
	count int
}

// may reports whether the model has room for a test.
func (u *used) may(bin int) bool { return u.count < maxBins-2 || u.bins[bin] }

func (u *used) add(bin int) {
	if !u.bins[bin] && bin > 1 { // the first bin needs no cut
		u.count++
	}
	u.bins[bin] = true
}

// best returns the test that reduces the squared error most over all nodes; of equals the first,
// and a coarse one before a fine one.
func (g *grower) best() (feature, bin int, gain float64) {
	base := 0.0
	for _, nd := range g.nodes {
		base += g.explained(nd.total)
	}
	least := math.Abs(base) * 1e-9
	coarse, cells := 0, 0
	for place, f := range g.live {
		bins := g.coarse[f]
		gains := g.gains[:bins]
		clear(gains)
		for _, nd := range g.nodes {
			g.addGains(gains, nd.hist[place*coarseBins:][:bins], 0, nd.total)
		}
		for b := 1; b < bins; b++ {
			if d := gains[b] - base; d > gain && d > least && g.used[f].may(g.columns[f].first(b)) {
				feature, coarse, gain = f, b, d
				cells = place * coarseBins
			}
		}
	}
	if gain <= 0 {
		return 0, 0, 0
	}
	c := &g.columns[feature]
	bin = c.first(coarse)
	if c.shift == 0 || coarse == 1 {
		return feature, bin, gain
	}
	from, to := c.first(coarse-1), c.first(coarse+1)
	gains := g.gains[:to-from]
	clear(gains)
	for i := range g.nodes {
		nd := &g.nodes[i]
		below := int64(0)
		for _, v := range nd.hist[cells:][:coarse-1] {
			below += v
		}
		h := g.near[:len(gains)]
		clear(h)
		for _, v := range g.rows[nd.start:nd.end] {
			if at := uint(int(c.fine[v.row]) - from); at < uint(len(h)) {
				h[at] += v.packed()
			}
		}
		g.addGains(gains, h, below, nd.total)
	}
	for i := 1; i < len(gains); i++ {
		if d := gains[i] - base; d > gain && g.used[feature].may(from+i) {
			bin, gain = from+i, d
		}
	}
	return feature, bin, gain
}

// addGains adds to every gain but the first how much a test at its bin explains of a node: cells
// are its bins, below is what lies below them, total everything. An empty bin has the gain of the
// one before; small nodes have many.
func (g *grower) addGains(gains []float64, cells []int64, below, total int64) {
	cells = cells[:len(gains)]
	both := g.explained(below) + g.explained(total-below)
	for b := 1; b < len(gains); b++ {
		if v := cells[b-1]; v != 0 {
			below += v
			both = g.explained(below) + g.explained(total-below)
		}
		gains[b] += both
	}
}

// explained is how much of the squared residuals in a cell their mean removes.
func (g *grower) explained(cell int64) float64 {
	s := float64(cell >> countBits)
	return s * s * g.inverse[cell&countMask]
}
