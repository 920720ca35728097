package learn

import "math"

// A shift is a change of all labels at once by one factor: another engine version, another clock
// speed, a noisy neighbour. The window is then full of labels that are wrong by that factor,
// including those of regimes that are currently absent, so they are corrected instead of waiting
// for new ones. A new regime is no shift: only buckets count that the current model knew well, and
// they must have moved alike.

const (
	// shiftHistory residuals are examined, of which at least shiftSamples must follow the change.
	shiftHistory = 300
	shiftSamples = 100
	// shiftEvery is the number of residuals between two examinations.
	shiftEvery = 25
	// knownResiduals is the number of residuals from which on a bucket is known.
	knownResiduals = 40
	// A shift is at least 10 %, and at least so many mean absolute residuals.
	leastShift  = 0.0953 // ln 1.1
	shiftScales = 2.5
	// Nine in ten residuals have its sign.
	shiftSigns = 0.9
	// At least so many buckets, each with at least so many residuals, have moved by the shift to
	// within half of it.
	shiftBuckets       = 3
	shiftBucketSamples = 8
)

// A shiftDetector examines the logarithms of actual over predicted latencies of the current
// model.
type shiftDetector struct {
	known     []bool  // by bucket
	scale     float64 // mean absolute residual when the model was fitted
	residuals []shiftResidual
	pause     bool // after a shift, until a model has learned from it
}

type shiftResidual struct {
	value  float64
	bucket int
	number uint64 // of the sample, in the order of the window
}

// refitted says that there is a new model, which knows the buckets with a history.
func (d *shiftDetector) refitted(s *spread) {
	d.known = d.known[:0]
	for i := range s.buckets {
		d.known = append(d.known, s.buckets[i].count >= knownResiduals)
	}
	d.scale = s.all.scale
	d.residuals = d.residuals[:0]
	d.pause = false
}

// add adds a residual. It returns the shift, if there was one, and the number of the first
// sample after it.
func (d *shiftDetector) add(r shiftResidual) (shift float64, first uint64) {
	if d.pause || d.known == nil || !d.known[r.bucket] {
		return 0, 0
	}
	if len(d.residuals) == shiftHistory {
		d.residuals = d.residuals[:copy(d.residuals, d.residuals[shiftEvery:])]
	}
	d.residuals = append(d.residuals, r)
	if n := len(d.residuals); n < shiftSamples || n%shiftEvery != 0 {
		return 0, 0
	}
	k := d.split()
	before, after := d.residuals[:k], d.residuals[k:]
	shift = meanOf(after)
	// Before it the model was right: the residuals of a new model have mean zero.
	if len(before) >= shiftEvery {
		shift -= meanOf(before)
	}
	if math.Abs(shift) < max(leastShift, shiftScales*d.scale) || !alike(after, shift) {
		return 0, 0
	}
	d.residuals = d.residuals[:0]
	d.pause = true
	return shift, after[0].number
}

// suspects reports whether the latest residuals look like the beginning of a shift, so that it is
// better to wait for more than to fit a model to partly wrong labels.
func (d *shiftDetector) suspects() bool {
	n := len(d.residuals)
	if d.pause || n < shiftEvery {
		return false
	}
	newest := d.residuals[n-shiftEvery:]
	m := meanOf(newest)
	return math.Abs(m) >= max(leastShift, shiftScales*d.scale) && sameSign(newest, m)
}

func sameSign(residuals []shiftResidual, sign float64) bool {
	n := 0
	for _, r := range residuals {
		if r.value*sign > 0 {
			n++
		}
	}
	return float64(n) >= shiftSigns*float64(len(residuals))
}

// split returns the index of the largest change, with at least shiftSamples after it.
func (d *shiftDetector) split() int {
	total := 0.0
	for _, r := range d.residuals {
		total += r.value
	}
	n := float64(len(d.residuals))
	best, at := -1.0, 0
	before := 0.0
	for k := 0; k <= len(d.residuals)-shiftSamples; k++ {
		// The reduction of the squared error by two means instead of one.
		if k > 0 {
			before += d.residuals[k-1].value
		}
		m := float64(k)
		gain := (total - before) * (total - before) / (n - m)
		if k > 0 {
			gain += before * before / m
		}
		if gain > best {
			best, at = gain, k
		}
	}
	return at
}

// alike reports whether the residuals have moved by the shift in every bucket.
func alike(residuals []shiftResidual, shift float64) bool {
	type bucketSum struct {
		sum float64
		n   int
	}
	if !sameSign(residuals, shift) {
		return false
	}
	sums := map[int]bucketSum{}
	for _, r := range residuals {
		s := sums[r.bucket]
		sums[r.bucket] = bucketSum{s.sum + r.value, s.n + 1}
	}
	buckets := 0
	for _, s := range sums {
		if s.n < shiftBucketSamples {
			continue
		}
		if share := s.sum / float64(s.n) / shift; share < 0.5 || share > 1.5 {
			return false
		}
		buckets++
	}
	return buckets >= shiftBuckets
}

func meanOf(residuals []shiftResidual) float64 {
	s := 0.0
	for _, r := range residuals {
		s += r.value
	}
	return s / float64(len(residuals))
}

// Rescale multiplies the labels of all samples before the one with that number, counted from 1
// by Added.
func (w *Window) Rescale(factor float64, before uint64) {
	for i := range w.buckets {
		b := &w.buckets[i]
		for n, s := 0, b.oldest; n < b.rows; n, s = n+1, w.next[s] {
			if w.number[s] < before {
				w.y[s] = max(1/maxLabel, min(w.y[s]*factor, maxLabel))
			}
		}
	}
}
