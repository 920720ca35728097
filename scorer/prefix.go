package scorer

import "github.com/endpick/endpick"

// PrefixAffinity scores the share of the prompt that the endpoint holds, H/L.
type PrefixAffinity struct{}

// Name is what receipts show.
func (PrefixAffinity) Name() string { return "prefix-affinity" }

// Score implements [endpick.Scorer].
func (PrefixAffinity) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i := range candidates {
		dst[i] = candidates[i].MatchShare(req)
	}
}
