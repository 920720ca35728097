package sim

import (
	"math"
	"math/rand/v2"
)

// quantiles is a distribution of positive numbers, given by some of its quantiles:
// from share 0, the smallest value, to share 1, the largest. It interpolates
// linearly in the logarithm.
type quantiles []quantile

type quantile struct{ share, value, log float64 }

// newQuantiles takes alternating shares and values, both ascending.
func newQuantiles(pairs ...float64) quantiles {
	q := make(quantiles, len(pairs)/2)
	for i := range q {
		q[i] = quantile{pairs[2*i], pairs[2*i+1], math.Log(pairs[2*i+1])}
	}
	return q
}

// at is the value below which a share u in [0, 1] of all draws are.
func (q quantiles) at(u float64) float64 {
	i := 1
	for i < len(q)-1 && u >= q[i].share {
		i++
	}
	a, b := &q[i-1], &q[i]
	return math.Exp(a.log + (b.log-a.log)*(u-a.share)/(b.share-a.share))
}

// draw draws a value.
func (q quantiles) draw(random *rand.PCG) float64 { return q.at(unit(random)) }

// unit draws a number from [0, 1). A PCG without a Rand around it is two words: every
// agent has some.
func unit(random *rand.PCG) float64 { return float64(random.Uint64()>>11) / (1 << 53) }

// normal draws from the standard normal distribution (Box and Muller).
func normal(random *rand.PCG) float64 {
	return math.Sqrt(-2*math.Log(1-unit(random))) * math.Cos(2*math.Pi*unit(random))
}
