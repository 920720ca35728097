package scorer

import (
	"cmp"

	"github.com/endpick/endpick"
)

// Resident prefers endpoints that have the request's model in memory, by
// [endpick.Endpoint.Residents]: 1; one half where it is being loaded, 0 where it is on disk. An endpoint
// that says nothing of its memory holds what it serves: 1.
func Resident() endpick.Scorer { return resident{} }

type resident struct{}

func (resident) Name() string { return "resident" }

func (resident) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i := range candidates {
		dst[i] = 1
		if r := candidates[i].Endpoint.Resident(cmp.Or(req.Model, req.Adapter)); r != nil {
			dst[i] = float64(r.State) / float64(endpick.InMemory)
		}
	}
}
