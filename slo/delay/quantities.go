package delay

import "math"

// bound tracks the 90th percentile of measured over expected: up by nine steps
// for a ratio above it, down by one step for one below.
type bound struct{ log float64 }

const (
	boundStep = 0.02
	firstLog  = 0.4 // a ratio of 1.5
	mostLog   = 3   // of 20
)

func (b *bound) add(ratio float64) {
	if b.log == 0 {
		b.log = firstLog
	}
	if ratio > math.Exp(b.log) {
		b.log += 0.9 * boundStep
	} else {
		b.log -= 0.1 * boundStep
	}
	b.log = min(max(b.log, boundStep), mostLog)
}

// deviation is the standard deviation of the logarithm of these ratios: nine in
// ten values of a normal distribution are below 1.28 standard deviations.
func (b *bound) deviation() float64 { return max(b.log, boundStep) / 1.28 }

func (b *bound) ratio() float64 {
	if b.log == 0 {
		return math.Exp(firstLog)
	}
	return math.Exp(b.log)
}

// persistence learns how much of a difference between servers lasts, from the
// differences to the mean at moments that are lag milliseconds apart.
type persistence struct {
	now, later float64 // Σ d², Σ d·d′
	lag        mean
}

// add adds the sums over the endpoints of a kind.
func (p *persistence) add(square, product, lag float64) {
	const keep = 1 - 1.0/100
	p.now = p.now*keep + square
	p.later = p.later*keep + product
	p.lag.add(lag)
}

// over returns the mean share of a difference that remains during the following
// time: with d′ = d·e^(−t/τ) that is τ/t·(1 − e^(−t/τ)).
//
// τ is at least half of that time. While the fuller server's requests end, the others can fill up
// about as fast, and no faster. Less is measured where servers alternate in being full: what is
// there after a quarter of their period has nothing to do with what was there before. If
// differences were then ignored, they would never end.
func (p *persistence) over(ms float64) float64 {
	lag := p.lag.or(ms / 2)
	if !(lag > 0) || !(ms > 0) {
		return 0.5
	}
	// The prior, which weighs as much as a difference of one request, is that half
	// remains after half the time.
	rest := (p.later + 0.5) / (p.now + 1)
	rest = min(max(rest, 0.01), 0.99)
	t := min(-math.Log(rest)*ms/lag, 2)
	return min((1-math.Exp(-t))/t, 1)
}
