package scorer

import (
	"cmp"

	"github.com/endpick/endpick"
)

// Resident prefers endpoints that have the request's model in memory, by
// [endpick.Endpoint.Residents]: 1; one half where it is being loaded, 0 where it is on disk, or loaded
// with another context than the request asks for. An endpoint that says nothing of its memory holds
// what it serves: 1.
func Resident() endpick.Scorer { return resident{} }

type resident struct{}

func (resident) Name() string { return "resident" }

func (resident) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i := range candidates {
		dst[i] = 1
		r := candidates[i].Endpoint.Resident(cmp.Or(req.Model, req.Adapter))
		switch {
		case r == nil:
		case req.Context > 0 && r.Context > 0 && req.Context != r.Context:
			dst[i] = 0
		default:
			dst[i] = float64(r.State) / float64(endpick.InMemory)
		}
	}
}
