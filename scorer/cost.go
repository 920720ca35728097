package scorer

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
)

// Cost makes a scorer from a cost function: the candidate with the lowest cost
// scores highest. The score is 1/(2 + 2·cost), within [0, 0.5], for costs of
// zero and above, and 1 − 1/(2 − 2·cost) below zero; it keeps the order of
// costs. A cost that is not a number, or infinite, scores 0: one endpoint's
// broken indicator costs that endpoint alone.
//
// The name is shown in receipts. The function is called concurrently, once for
// each candidate, and keeps neither argument.
func Cost(name string, cost func(req *endpick.Request, c *endpick.Candidate) float64) endpick.Scorer {
	return &costScorer{name: name, cost: cost}
}

type costScorer struct {
	name string
	cost func(*endpick.Request, *endpick.Candidate) float64
}

func (s *costScorer) Name() string { return s.name }

func (s *costScorer) Validate() error {
	if s.cost == nil {
		return check.Bad("scorer.Cost", "has no function")
	}
	return nil
}

func (s *costScorer) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i := range candidates {
		dst[i] = fromCost(s.cost(req, &candidates[i]))
	}
}

// fromCost maps costs to scores as [Cost] says. For cost ≥ 0 it keeps the
// relative precision of the cost, so that large costs stay distinct.
func fromCost(cost float64) float64 {
	switch {
	case cost-cost != 0: // NaN or infinite
		return 0
	case cost >= 0:
		return 0.5 / (1 + cost)
	default:
		return 1 - 0.5/(1-cost)
	}
}
