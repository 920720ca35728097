package scorer

import (
	"sync"

	"github.com/endpick/endpick"
)

// RoundRobin prefers the endpoint that has gone longest without a request;
// those that never had one come first. Over a fixed set of candidates that is
// a rotation. Requests that are routed at the same moment may go to the same
// endpoint. It belongs to one router.
func RoundRobin() endpick.Scorer { return &roundRobin{} }

type roundRobin struct {
	endpick.Exclusive
	uses uses
}

func (*roundRobin) Name() string { return "round-robin" }

func (s *roundRobin) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	s.uses.mu.RLock()
	defer s.uses.mu.RUnlock()
	for i := range candidates {
		dst[i] = fromCost(float64(s.uses.last(candidates[i].Ref)))
	}
}

func (s *roundRobin) Routed(e *endpick.Event) { s.uses.add(e.Candidate.Ref) }

// uses numbers the uses of endpoints, and remembers each endpoint's last.
type uses struct {
	mu     sync.RWMutex // last requires callers to hold it
	count  uint64
	newest endpick.PerEndpoint[uint64]
}

// last returns the number of the endpoint's last use, or 0.
func (u *uses) last(ref endpick.EndpointRef) uint64 {
	if number := u.newest.Find(ref); number != nil {
		return *number
	}
	return 0
}

func (u *uses) add(ref endpick.EndpointRef) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if number := u.newest.At(ref); number != nil { // nil: the endpoint was removed meanwhile
		u.count++
		*number = u.count
	}
}
