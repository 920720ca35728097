package scorer

import "github.com/endpick/endpick"

// LMetric is the product of the prefill that the request would wait for and the batch it
// would join, (F + Q) × (BS + 1), the smallest first. It has no parameters. See section 5
// of the paper; the 1 is from the authors' code, and orders idle endpoints by prefill.
//
// It decides alone. Its score is 0.5/(1 + product), 1e-4 or less from 5,000 tokens on, so that any other
// scorer in a weighted sum outweighs it. To combine load and prefix by weights use
// [QueueDepth], [KVUsage] and [PrefixAffinity]; to narrow the choice before LMetric, a
// filter; to add a term of your own to the product, a [Cost].
func LMetric() endpick.Scorer { return lmetric{} }

type lmetric struct{}

func (lmetric) Name() string { return "lmetric" }

func (lmetric) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i := range candidates {
		dst[i] = fromCost(prefillTimesBatch(req, &candidates[i]))
	}
}

// prefillTimesBatch is LMetric's product. F is at least 1, also for a prompt of unknown
// length, so that load always counts.
func prefillTimesBatch(req *endpick.Request, c *endpick.Candidate) float64 {
	prefill := float64(max(c.NewTokens(req), 1) + c.InFlight.PrefillTokens)
	return prefill * (c.BatchSize() + 1)
}
