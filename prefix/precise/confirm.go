package precise

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

// prompt is what is remembered of a request under way, to see whether events name its blocks.
type prompt struct {
	ends   [2]uint64 // the first and the last block; of others, engines may not say anything
	tokens int       // in whole blocks
}

// Routed implements [endpick.RoutedObserver].
func (of observer) Routed(e *endpick.Event) {
	x := of.index
	x.mu.Lock()
	defer x.mu.Unlock()
	blocks := e.Request.Blocks
	if len(blocks) == 0 || x.knows(e.Candidate.Ref) == Nothing {
		return
	}
	if !e.Request.Exact {
		for _, f := range x.endpoints.Find(e.Candidate.Ref).feeds {
			f.stats.Textual++
		}
	} else if p := x.prompts.At(e.Lease); p != nil {
		*p = prompt{[2]uint64{blocks[0], blocks[len(blocks)-1]}, len(blocks) * prefix.BlockTokens}
	}
}

// Done implements [endpick.DoneObserver].
func (of observer) Done(e *endpick.Event, outcome *endpick.Outcome) {
	x := of.index
	x.mu.Lock()
	defer x.mu.Unlock()
	at, p := x.endpoints.Find(e.Candidate.Ref), x.prompts.Find(e.Lease)
	if at != nil && p != nil && (outcome.Status == endpick.Completed || !e.FirstTokenAt.IsZero()) {
		x.confirm(at, p)
	}
	x.prompts.Drop(e.Lease)
}

// confirm counts whether events have named a block of a prompt. One that fills no block of the
// engine's is none's.
func (x *Index) confirm(at *endpoint, p *prompt) {
	for _, f := range at.feeds {
		for _, key := range p.ends {
			if n := x.store.nodes[key]; n != nil {
				if _, mask := n.find(f.number); mask != 0 {
					f.stats.Confirmed++
					return
				}
			}
		}
	}
	for _, f := range at.feeds {
		if p.tokens >= f.grain {
			f.stats.Unconfirmed++
		}
	}
}
