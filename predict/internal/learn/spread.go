package learn

import (
	"cmp"
	"math"
	"sync/atomic"
)

// A spread estimates how far above its prediction a latency may be. In every bucket of the window
// it tracks the quantile of math.Log(actual/predicted) that nine in ten stay below: a miss
// raises it by nine steps, a hit lowers it by one. Whatever the sequence, the share of misses then
// tends to one in ten in each bucket (quantile tracking: Angelopoulos, Candès, Tibshirani,
// "Conformal PID Control for Time Series Prediction", 2023, section 2.1). A bucket without a
// history starts from the quantile over all buckets.
type spread struct {
	all     quantile
	buckets []quantile
	// factors multiply the predictions in each bucket, as float bits, and may be read while they
	// change. Zero is a bucket without a history, for which that of all buckets is used.
	factors []atomic.Uint64
	whole   atomic.Uint64
}

const (
	missRate = 0.1
	// smallestStep is the step of a quantile with a long history, in mean absolute residuals.
	smallestStep = 0.04
	maxResidual  = 3 // e³: a request that took twenty times as long
	// fewResiduals are too few for a quantile: instead, twice their mean absolute value is used, which
	// is that of a normal distribution plus a quarter.
	fewResiduals = 10
	// unknownQuantile, ln 2, is assumed until something is known.
	unknownQuantile = math.Ln2
)

type quantile struct {
	value float64
	scale float64 // mean absolute residual
	count int
}

func (q *quantile) add(residual float64) {
	q.count++
	n := float64(q.count)
	q.scale += (math.Abs(residual) - q.scale) * max(1/n, 0.01)
	step := q.scale * max(2/(n+1), smallestStep)
	if q.count <= fewResiduals {
		q.value = 2 * q.scale
	} else if residual > q.value {
		q.value += step * (1 - missRate) / (2 * missRate)
	} else {
		q.value -= step / 2
	}
	q.value = max(0, min(q.value, maxResidual))
}

func newSpread(buckets int) *spread {
	s := &spread{all: quantile{value: unknownQuantile}, buckets: make([]quantile, buckets), factors: make([]atomic.Uint64, buckets)}
	s.whole.Store(math.Float64bits(math.Exp(s.all.value)))
	return s
}

// add adds the result of a prediction.
func (s *spread) add(bucket int, predicted, actual float64) {
	r := max(-maxResidual, min(math.Log(actual/predicted), maxResidual))
	s.all.add(r)
	s.whole.Store(math.Float64bits(math.Exp(s.all.value)))
	b := &s.buckets[bucket]
	if b.count == 0 {
		b.value, b.scale = s.all.value, s.all.scale
		// A history short enough for it to learn its own quickly.
		b.count = fewResiduals
	}
	b.add(r)
	s.factors[bucket].Store(math.Float64bits(math.Exp(b.value)))
}

// factor is the upper bound divided by the prediction, at least 1. It may be called
// concurrently with add.
func (s *spread) factor(bucket int) float64 {
	return math.Float64frombits(cmp.Or(s.factors[bucket].Load(), s.whole.Load()))
}
