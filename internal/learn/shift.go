package learn

import (
	"math"
)

// A shift is a change of all labels at once by one factor: another engine version, another clock speed, a noisy
// neighbour. The window is then full of labels that are wrong by that factor, also those of regimes that are out of
// sight, so they are corrected instead of waiting for new ones. A new regime is no shift: only buckets count that the
// model in force knew well, and they have to have moved alike.

const (
	// shiftHistory residuals are looked at, of which shiftSamples have to lie behind the change.
	shiftHistory = 300
	shiftSamples = 100
	// shiftEvery is how many residuals go by between two looks.
	shiftEvery = 25
	// knownResiduals make a bucket known.
	knownResiduals = 40
	// A shift is at least one of 10 %, and of so many mean absolute residuals.
	leastShift  = 0.0953 // ln 1.1
	shiftScales = 2.5
	// Nine in ten residuals have its sign.
	shiftSigns = 0.9
	// At least so many buckets, each with so many residuals, moved by within half of it.
	shiftBuckets       = 3
	shiftBucketSamples = 8
)

// A shiftDetector looks at the logarithms of actual over predicted latencies, in the model in force.
type shiftDetector struct {
	known     []bool  // by bucket
	scale     float64 // the mean absolute residual when the model was fitted
	residuals []shiftResidual
	pause     bool // after a shift, until a model knows of it
}

type shiftResidual struct {
	value  float64
	bucket int
	number uint64 // of the sample, in the order of the window
}

// refitted says that a new model is in force, which knows the buckets that have a history.
func (d *shiftDetector) refitted(s *spread) {
	d.known = d.known[:0]
	for i := range s.buckets {
		d.known = append(d.known, s.buckets[i].count >= knownResiduals)
	}
	d.scale = s.all.scale
	d.residuals = d.residuals[:0]
	d.pause = false
}

// add takes in a residual and returns the shift if there was one, and the number of the first sample after it.
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
	// Before it the model was right: the residuals of a fresh model have mean zero.
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

// suspects tells whether the newest residuals look like the beginning of a shift, so that it is better to wait for the
// rest than to fit a model to labels of which some are wrong.
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

// split returns where the residuals change most, with shiftSamples behind it.
func (d *shiftDetector) split() int {
	total := 0.0
	for _, r := range d.residuals {
		total += r.value
	}
	n := float64(len(d.residuals))
	best, at := -1.0, 0
	before := 0.0
	for k := 0; k <= len(d.residuals)-shiftSamples; k++ {
		// The squared error that two means take away from one.
		if k > 0 {
			before += d.residuals[k-1].value
		}
		m := float64(k)
		gain := float64((total - before) * (total - before) / (n - m))
		if k > 0 {
			gain += float64(before * before / m)
		}
		if gain > best {
			best, at = gain, k
		}
	}
	return at
}

// alike tells whether the residuals have moved by the shift in every bucket.
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

// Rescale multiplies the labels of all samples that were added before the one of that number, counted from 1 by Added.
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
