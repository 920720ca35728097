package scorer

import (
	"slices"

	"github.com/endpick/endpick"
)

// AdapterAffinity prefers endpoints that have the request's adapter (LoRA)
// loaded: 1 if the engine reports it as loaded, 0 if it reports others, 0.5 if
// it reports none at all. A request without an adapter scores 0.5 everywhere.
func AdapterAffinity() endpick.Scorer { return adapterAffinity{} }

type adapterAffinity struct{}

func (adapterAffinity) Name() string { return "adapter-affinity" }

func (adapterAffinity) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i := range candidates {
		report := candidates[i].Report
		switch {
		case req.Adapter == "" || report == nil || report.Adapters == nil:
			dst[i] = 0.5
		case slices.Contains(report.Adapters, req.Adapter):
			dst[i] = 1
		default:
			dst[i] = 0
		}
	}
}
