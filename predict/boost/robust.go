package boost

import (
	"math"
	"slices"
)

// A label can be far off for reasons that no feature shows: an answer from somebody else's cache, a
// clock that was set. A few such labels in a hundred must not make a fit worse, whatever they are.
// Large samples can outvote them, small ones can't, so three places limit them to the weight of an
// ordinary row: the prior reduces the weight of rows far below it, the mean of the residuals pulls
// them into the reach of the ordinary ones, and the trees see residuals clipped at a factor of
// twenty beyond the ordinary.

const (
	// robustSample is how many rows determine what is ordinary.
	robustSample = 1024
	// 1/strange of the rows, at either end, is not counted as ordinary.
	strange = 8
	// reach is how far beyond the range of ordinary residuals, in ranges, a residual still counts
	// in full for their mean.
	reach = 3
	// farOff is the logarithm of a factor that must be an error: e³ is 20.
	farOff = 3
)

// sampleRows calls f with up to robustSample of n rows: one out of each stretch, at a varying
// place, so that what recurs at regular intervals is not seen too often.
func sampleRows(n int, f func(i int)) {
	stretch := max(1, float64(n)/robustSample)
	place := 0.0
	for k := 0.0; k*stretch < float64(n); k++ {
		f(int((k + place) * stretch))
		if stretch > 1 {
			place += golden
			place -= math.Floor(place)
		}
	}
}

// sampled returns up to robustSample of the values, sorted.
func sampled(values []float64) []float64 {
	s := make([]float64, 0, min(len(values), robustSample)+1)
	sampleRows(len(values), func(i int) { s = append(s, values[i]) })
	slices.Sort(s)
	return s
}

// ordinary returns the range of sorted values without the extreme ones.
func ordinary(sorted []float64) (low, high float64) {
	n := len(sorted)
	skip := (n + strange/2) / strange
	return sorted[skip], sorted[n-1-skip]
}

// centre sets the base to the mean of the residuals, with those beyond reach pulled in, subtracts
// it, and clips what is far off.
func (m *Model) centre(r, w []float64) {
	low, high := ordinary(sampled(r))
	beyond := reach * (high - low)
	least, most := low-beyond, high+beyond
	sum, total := 0.0, 0.0
	for i, v := range r {
		sum += max(least, min(v, most)) * w[i]
		total += w[i]
	}
	m.base = sum / total
	least, most = low-farOff-m.base, high+farOff-m.base
	for i, v := range r {
		r[i] = max(least, min(v-m.base, most))
	}
}
