package delay

import (
	"math"
	"slices"
	"strings"

	"github.com/endpick/endpick"
)

// glance is what a bound needs to know of an endpoint, in one cache line: what of its
// account counts, and what of its description.
type glance struct {
	ref      endpick.Ref
	endpoint *endpick.Endpoint // that it was taken from
	pairs    float64
	awake    int64   // until when it can't be silent, in nanoseconds
	perToken float64 // of its KV memory; 0: unknown
	places   float64 // of its batch; +Inf: unknown
	paced    int64   // until when its pace may count
	variant  uint8   // the place of its variant in Marginal.variants, from 1; 0: none
}

// special reports whether an endpoint may be slower or faster than others, or silent.
func (g *glance) special(now int64) bool { return now < g.paced || now > g.awake }

// account takes over what is known of the endpoint. e may be nil.
func (g *glance) account(e *endpoint) {
	g.pairs, g.paced, g.awake = 0, math.MinInt64, math.MaxInt64
	if e == nil {
		return
	}
	g.pairs, g.paced, g.awake = e.pairs, e.pace.Until(), e.awake()
	if e.waiting > 0 && e.since < g.paced {
		g.paced = math.MaxInt64 // while an answer is awaited nothing fades
	}
}

// noted brings the glance of an endpoint up to its account; m.mu is held.
func (m *Marginal) noted(ref endpick.Ref, e *endpoint) {
	if int64(ref.Slot) < int64(len(m.glances)) && m.glances[ref.Slot].ref == ref {
		m.glances[ref.Slot].account(e)
	}
}

// meet takes a glance at endpoints that are new, or are described anew.
func (m *Marginal) meet(candidates []endpick.Candidate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range candidates {
		c := &candidates[i]
		for int64(c.Ref.Slot) >= int64(len(m.glances)) {
			m.glances = append(m.glances, glance{})
		}
		g := &m.glances[c.Ref.Slot]
		if g.ref == c.Ref && g.endpoint == c.Endpoint {
			continue
		}
		*g = glance{ref: c.Ref, endpoint: c.Endpoint, places: placesOf(c.Endpoint), variant: m.place(c.Endpoint.Variant)}
		if n := c.Endpoint.KVTokens; n > 0 {
			g.perToken = 1 / float64(n)
		}
		g.account(m.endpoints.Find(c.Ref))
	}
}

// place is that of a variant among those that are told apart, from 1; 0 if there are too
// many.
func (m *Marginal) place(variant string) uint8 {
	at := slices.Index(m.variants, variant)
	if at < 0 {
		if len(m.variants) == math.MaxUint8 || len(variant) > maxName {
			return 0
		}
		at = len(m.variants)
		m.variants = append(m.variants, strings.Clone(variant))
	}
	return uint8(at + 1)
}
