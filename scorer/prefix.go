package scorer

import "github.com/endpick/endpick"

// PrefixAffinity scores the share of the prompt that the endpoint holds, H/L.
func PrefixAffinity() endpick.Scorer { return prefixAffinity{} }

type prefixAffinity struct{}

func (prefixAffinity) Name() string { return "prefix-affinity" }

func (prefixAffinity) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i := range candidates {
		dst[i] = candidates[i].MatchShare(req)
	}
}
