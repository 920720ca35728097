package scorer

import (
	"fmt"
	"math"

	"github.com/endpick/endpick"
)

// Dynamo is the cost of NVIDIA Dynamo's router, in blocks: the least w·(F + Q)/block + context/block, where context is
// the number of tokens resident for open requests (LMetric, section 6).
type Dynamo struct {
	// PrefillWeight is w. Zero: 1.
	PrefillWeight float64
}

// Validate is called by [endpick.New].
func (s Dynamo) Validate() error {
	if !(s.PrefillWeight >= 0) || math.IsInf(s.PrefillWeight, 1) {
		return &endpick.ConfigError{Field: "scorer.Dynamo.PrefillWeight", Reason: fmt.Sprintf("is %v, not above zero and finite", s.PrefillWeight)}
	}
	return nil
}

// Name is what receipts show.
func (Dynamo) Name() string { return "dynamo" }

// Score implements [endpick.Scorer].
func (s Dynamo) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	weight := s.PrefillWeight
	if weight == 0 {
		weight = 1
	}
	block := req.TokensPerBlock()
	for i := range candidates {
		c := &candidates[i]
		prefill := float64(c.NewTokens(req) + c.InFlight.PrefillTokens)
		context := float64(c.InFlight.ContextTokens + c.InFlight.OutputTokens)
		dst[i] = fromCost((weight*prefill + context) / block)
	}
}
