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
