package scorer

import (
	"fmt"

	"github.com/endpick/endpick"
)

// Linear is the linear combination that Bailian uses: the least λ(1 − H/L) + (1
// − λ)·BS/max BS. The best λ depends on the workload. See LMetric, figure 6b.
type Linear struct {
	// Lambda is the weight of the prefix, in (0, 1]. Zero: 0.7, the best for
	// the paper's chatbot trace.
	Lambda float64
}

// Validate is called by [endpick.New].
func (s Linear) Validate() error {
	if !(s.Lambda >= 0 && s.Lambda <= 1) {
		return &endpick.ConfigError{Field: "scorer.Linear.Lambda", Reason: fmt.Sprintf("is %v, not within [0, 1]", s.Lambda)}
	}
	return nil
}

// Name is what receipts show.
func (Linear) Name() string { return "linear" }

// Score implements [endpick.Scorer].
func (s Linear) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	lambda := s.Lambda
	if lambda == 0 {
		lambda = 0.7
	}
	_, most := batchRange(candidates)
	for i := range candidates {
		c := &candidates[i]
		load := 0.0
		if most > 0 {
			load = c.BatchSize() / most
		}
		dst[i] = 1 - lambda*(1-c.MatchShare(req)) - (1-lambda)*load
	}
}
