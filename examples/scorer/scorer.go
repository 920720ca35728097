// Package scorer is a scorer of one's own, to be copied: Cheap, and the test that it keeps what a
// router expects of scorers.
package scorer

import "github.com/endpick/endpick"

// Cheap prefers servers with a low price while their queues are short.
type Cheap struct{}

// Score implements [endpick.Scorer].
func (Cheap) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i := range candidates {
		c := &candidates[i]
		dst[i] = 0.5 / (1 + c.Waiting)
		if c.Endpoint.Labels["price"] == "low" && c.Waiting < 4 {
			dst[i] = 1
		}
	}
}
