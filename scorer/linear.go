package scorer

import (
	"cmp"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
)

// Linear is the linear combination that Bailian uses: the least λ(1 − H/L) + (1
// − λ)·BS/max BS. The best λ, which is in (0, 1], depends on the workload. Zero:
// 0.7, the best for the paper's chatbot trace. See LMetric, figure 6b.
func Linear(lambda float64) endpick.Scorer { return linear{lambda} }

type linear struct{ lambda float64 }

func (s linear) Validate() error {
	if !(s.lambda >= 0 && s.lambda <= 1) {
		return check.Bad("scorer.Linear", "has a lambda of %v, not within [0, 1]", s.lambda)
	}
	return nil
}

func (linear) Name() string { return "linear" }

func (s linear) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	lambda := cmp.Or(s.lambda, 0.7)
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
