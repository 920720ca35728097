package sim

import (
	"math"
	"slices"
)

// Summary describes a set of latencies, in milliseconds. All zero if Count is.
type Summary struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`

	sorted []float64
}

// summarize sorts the samples and keeps them.
func summarize(samples []float64) Summary {
	if len(samples) == 0 {
		return Summary{}
	}
	slices.Sort(samples)
	s := Summary{Count: len(samples), sorted: samples}
	for _, v := range samples {
		s.Mean += v
	}
	s.Mean /= float64(len(samples))
	s.P50, s.P90, s.P95, s.P99 = s.Quantile(0.5), s.Quantile(0.9), s.Quantile(0.95), s.Quantile(0.99)
	return s
}

// Quantile is the smallest sample that at least a share q of all samples does
// not exceed (nearest rank); 0 without samples.
func (s *Summary) Quantile(q float64) float64 {
	if len(s.sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(q * float64(len(s.sorted))))
	return s.sorted[min(max(rank, 1), len(s.sorted))-1]
}

// jain is Jain's fairness index (Σx)²/(n·Σx²): 1 if all are equal, 1/n if one has
// everything, and 1 if there is nobody, or nothing to share.
func jain(xs []float64) float64 {
	var sum, squares float64
	for _, x := range xs {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (float64(len(xs)) * squares)
}

// meanAndDeviation is the mean and the standard deviation of a population.
func meanAndDeviation(xs []float64) (mean, deviation float64) {
	for _, x := range xs {
		mean += x
	}
	mean /= float64(len(xs))
	for _, x := range xs {
		deviation += (x - mean) * (x - mean)
	}
	return mean, math.Sqrt(deviation / float64(len(xs)))
}
