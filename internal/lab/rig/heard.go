package rig

import (
	"slices"
	"strings"
	"sync"

	"github.com/endpick/endpick"
)

// Heard is a stage that prefers endpoints in an order and records how requests end.
type Heard struct {
	Order  string // of the endpoints, whose IDs are letters
	Refuse error  // for all requests; nil: none is refused
	mu     sync.Mutex
	ends   []End
}

// End is how a request ended.
type End struct {
	Endpoint string
	Outcome  endpick.Outcome
	Request  endpick.Request
	Matched  int  // tokens of the prompt that the endpoint was expected to have cached
	Token    bool // there was a first one
}

// Admit implements [endpick.Admitter].
func (h *Heard) Admit(*endpick.Request, []endpick.Candidate) error { return h.Refuse }

// Score implements [endpick.Scorer].
func (h *Heard) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i, c := range candidates {
		dst[i] = 1 / float64(2+strings.Index(h.Order, c.Endpoint.ID))
	}
}

// Done implements [endpick.DoneObserver].
func (h *Heard) Done(e *endpick.Event, o *endpick.Outcome) {
	_, token := e.TTFT()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ends = append(h.ends, End{e.Candidate.Endpoint.ID, *o, *e.Request, e.Candidate.PrefixTokens, token})
}

// Ends returns all that have ended.
func (h *Heard) Ends() []End {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.ends)
}

// Last is the last end, which there must be.
func (h *Heard) Last() End {
	ends := h.Ends()
	return ends[len(ends)-1]
}

// Said lists endpoints and statuses: a completed, b failed.
func (h *Heard) Said() string {
	var all []string
	for _, e := range h.Ends() {
		all = append(all, e.Endpoint+" "+e.Outcome.Status.String())
	}
	return strings.Join(all, ", ")
}
