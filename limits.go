package endpick

import (
	"cmp"
	"fmt"
	"math"
)

// What operators set for an endpoint by hand: MaxInFlight, MaxContext, Tier and Weight. Where no
// endpoint has any of it, a decision does not look.

// limited reports whether the operator has set a limit, a tier or a weight.
func (e *Endpoint) limited() bool {
	return e.MaxInFlight > 0 || e.MaxContext > 0 || e.Tier > 1 || e.weight() != 1
}

func (e *Endpoint) weight() float64 { return cmp.Or(e.Weight, 1) }

// ContextError says that a prompt fits no endpoint that serves the model. A length that is
// estimated may be too high: up to a quarter beyond the longest context, the endpoints that have
// this context are candidates, and refuse what they can't take.
type ContextError struct {
	Model       string
	InputTokens int // of the request
	MaxContext  int // the longest that there is
}

func (e *ContextError) Error() string {
	return fmt.Sprintf("endpick: a prompt of %d tokens fits no endpoint for model %q: the longest context is %d",
		e.InputTokens, e.Model, e.MaxContext)
}

// keepFitting leaves the candidates whose context the prompt fits.
func (d *decision) keepFitting() {
	need, longest := d.req.InputTokens, 0
	fits := Keep(d.candidates, func(c *Candidate) bool {
		longest = max(longest, c.Endpoint.MaxContext)
		return c.Endpoint.MaxContext == 0 || need <= c.Endpoint.MaxContext
	})
	if len(fits) == 0 && float64(need) <= 1.25*float64(longest) {
		fits = Keep(d.candidates, func(c *Candidate) bool { return c.Endpoint.MaxContext == longest })
	}
	d.short, d.longest = len(d.candidates)-len(fits), longest
	d.candidates = fits
}

// keepFree leaves the candidates that may have another lease.
func (d *decision) keepFree() {
	free := Keep(d.candidates, func(c *Candidate) bool {
		return c.Endpoint.MaxInFlight == 0 || c.InFlight.Requests < c.Endpoint.MaxInFlight
	})
	d.full = len(d.candidates) - len(free)
	d.candidates = free
}

// keepLowestTier leaves the candidates of the lowest tier.
func (d *decision) keepLowestTier() {
	tier := math.MaxInt
	for i := range d.candidates {
		tier = min(tier, max(d.candidates[i].Endpoint.Tier, 1))
	}
	first := Keep(d.candidates, func(c *Candidate) bool { return c.Endpoint.Tier <= tier })
	d.later = len(d.candidates) - len(first)
	d.candidates = first
}

// weigh multiplies scores by the endpoints' weights, and divides those below zero. They stay finite.
func weigh(candidates []Candidate, scores []float64) {
	for i := range candidates {
		w := candidates[i].Endpoint.weight()
		if scores[i] < 0 {
			w = 1 / w
		}
		scores[i] = min(max(scores[i]*w, -math.MaxFloat64), math.MaxFloat64)
	}
}
