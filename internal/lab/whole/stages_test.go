package whole

import "github.com/endpick/endpick"

// poison is a stage that panics in every third of its calls, depending on the request.
type poison struct{ healthy bool }

func (p *poison) strike(n uint64) {
	if !p.healthy && n%3 == 1 {
		panic("poison")
	}
}

func (p *poison) Filter(req *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	p.strike(req.Number())
	return candidates
}

func (p *poison) Routed(e *endpick.Event)                   { p.strike(e.Request.Number() + 1) }
func (p *poison) FirstToken(e *endpick.Event)               { p.strike(e.Request.Number() + 2) }
func (p *poison) Done(e *endpick.Event, _ *endpick.Outcome) { p.strike(e.Request.Number()) }
func (p *poison) EndpointRemoved(ref endpick.EndpointRef)   { p.strike(uint64(ref.Slot)) }

// heard is what was observed of one lease.
type heard struct {
	routed, first, done int
	status              endpick.Status
	order               bool // Routed first, Done last
}

// spy observes all leases. It is a filter that keeps every candidate.
type spy struct {
	heard map[endpick.LeaseRef]*heard
	gone  []endpick.EndpointRef
}

func (*spy) Filter(_ *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	return candidates
}

func (s *spy) of(ref endpick.LeaseRef) *heard {
	if s.heard[ref] == nil {
		s.heard[ref] = &heard{order: true}
	}
	return s.heard[ref]
}

func (s *spy) Routed(e *endpick.Event) {
	h := s.of(e.Lease)
	h.order = h.order && h.routed+h.first+h.done == 0
	h.routed++
}

func (s *spy) FirstToken(e *endpick.Event) {
	h := s.of(e.Lease)
	h.order = h.order && h.routed == 1 && h.done == 0
	h.first++
}

func (s *spy) Done(e *endpick.Event, o *endpick.Outcome) {
	h := s.of(e.Lease)
	h.order = h.order && h.routed == 1
	h.done++
	h.status = o.Status
}

func (s *spy) EndpointRemoved(ref endpick.EndpointRef) { s.gone = append(s.gone, ref) }
