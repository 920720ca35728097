package boost

import (
	"math"
	"slices"
)

// A label can be far off for reasons that no feature tells: an answer from somebody else's cache, a clock that was set.
// A fit must be no worse for a few of them in a hundred, whatever they say. Large samples can outvote them, small ones
// can't, so they are kept from counting for more than an ordinary row in three places: the prior weighs rows down that
// lie far below it, the mean of the residuals is that of rows pulled into the reach of the ordinary ones, and what is
// left for the trees to explain is cut off a factor of twenty beyond the ordinary.

const (
	// robustSample is how many rows tell what is ordinary.
	robustSample = 1024
	// strange is the share of the rows at either end that are not asked what is ordinary.
	strange = 8 // one in so many
	// reach is how many times their range beyond the ordinary residuals a residual counts in full for their mean.
	reach = 3
	// farOff is the logarithm of a factor that is an error and no answer: e³ is 20.
	farOff = 3
)

// sampleRows calls f with up to robustSample of n rows: one out of each stretch of them, at a place that differs from
// stretch to stretch, so that nothing that comes back at regular intervals is seen more often than it is there.
func sampleRows(n int, f func(i int)) {
	stretch := max(1, float64(n)/robustSample)
	place := 0.0
	for k := 0; ; k++ {
		i := int((float64(k) + place) * stretch)
		if float64(k)*stretch >= float64(n) || i >= n {
			return
		}
		f(i)
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

// ordinary returns the range of sorted values without the strange ones.
func ordinary(sorted []float64) (low, high float64) {
	n := len(sorted)
	skip := (n + strange/2) / strange
	return sorted[skip], sorted[n-1-skip]
}

// centre sets the base to the mean of the residuals, with those beyond reach pulled in, takes it off them, and cuts off
// what is far off.
func (m *Model) centre(r, w []float64) {
	low, high := ordinary(sampled(r))
	beyond := float64(reach * (high - low))
	least, most := low-beyond, high+beyond
	sum, total := 0.0, 0.0
	for i, v := range r {
		sum += float64(max(least, min(v, most)) * w[i])
		total += w[i]
	}
	m.base = sum / total
	least, most = low-farOff-m.base, high+farOff-m.base
	for i, v := range r {
		r[i] = max(least, min(v-m.base, most))
	}
}
