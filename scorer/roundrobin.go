package scorer

import (
	"sync"

	"github.com/endpick/endpick"
)

// RoundRobin prefers the endpoint that has gone longest without a request;
// those that never had one come first. Over a fixed set of candidates that is
// a rotation. The zero value is ready. It is safe for concurrent use; requests
// that are routed at the same moment may take the same turn. It must not be
// copied after first use.
type RoundRobin struct {
	endpick.Exclusive
	turns turns
}

// Name is what receipts show.
func (*RoundRobin) Name() string { return "round-robin" }

// Score implements [endpick.Scorer].
func (s *RoundRobin) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	s.turns.mu.RLock()
	defer s.turns.mu.RUnlock()
	for i := range candidates {
		dst[i] = fromCost(float64(s.turns.last(candidates[i].Ref)))
	}
}

// Routed implements [endpick.RoutedObserver].
func (s *RoundRobin) Routed(e *endpick.Event) { s.turns.take(e.Candidate.Ref) }

// turns remembers when each endpoint had its last turn. Turns are numbered.
type turns struct {
	mu     sync.RWMutex // last requires callers to hold it
	count  uint64
	newest endpick.PerEndpoint[uint64] // number of each endpoint's last turn
}

// last returns the number of the endpoint's last turn, or 0.
func (t *turns) last(ref endpick.EndpointRef) uint64 {
	if number := t.newest.Find(ref); number != nil {
		return *number
	}
	return 0
}

// take gives the endpoint a turn.
func (t *turns) take(ref endpick.EndpointRef) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if number := t.newest.At(ref); number != nil { // nil: the endpoint was removed meanwhile
		t.count++
		*number = t.count
	}
}
