package scorer

import (
	"cmp"
	"math"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
)

// Dynamo is the cost of NVIDIA Dynamo's router, in blocks: the least w·(F + Q)/block + context/block, where context is
// the number of tokens resident for open requests (LMetric, section 6) and w the prefillWeight. Zero: 1.
func Dynamo(prefillWeight float64) endpick.Scorer { return dynamo{prefillWeight} }

type dynamo struct{ prefillWeight float64 }

func (s dynamo) Validate() error {
	if !(s.prefillWeight >= 0) || math.IsInf(s.prefillWeight, 1) {
		return check.Bad("scorer.Dynamo", "has a prefill weight of %v, not above zero and finite", s.prefillWeight)
	}
	return nil
}

func (dynamo) Name() string { return "dynamo" }

func (s dynamo) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	weight := cmp.Or(s.prefillWeight, 1)
	block := req.TokensPerBlock()
	for i := range candidates {
		c := &candidates[i]
		prefill := float64(c.NewTokens(req) + c.InFlight.PrefillTokens)
		context := float64(c.InFlight.ContextTokens + c.InFlight.OutputTokens)
		dst[i] = fromCost((weight*prefill + context) / block)
	}
}
