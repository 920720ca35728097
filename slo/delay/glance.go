package delay

import (
	"math"
	"slices"
	"strings"

	"github.com/endpick/endpick"
)

// glance is the part of an endpoint's account and description that its lower bound
// depends on, on one cache line.
type glance struct {
	ref      endpick.Ref
	endpoint *endpick.Endpoint // the description it was made from
	pairs    float64
	awake    int64   // not silent before then, in nanoseconds
	perToken float64 // share of KV memory; 0: unknown
	places   float64 // in the batch; +Inf: unknown
	paced    int64   // its pace counts at most until then
	variant  uint8   // 1 + the index of its variant in Marginal.variants; 0: none
}

// special reports whether an endpoint may be slower or faster than others, or silent.
func (g *glance) special(now int64) bool { return now < g.paced || now > g.awake }

// account takes over what is known about the endpoint. e may be nil.
func (g *glance) account(e *endpoint) {
	g.pairs, g.paced, g.awake = 0, math.MinInt64, math.MaxInt64
	if e == nil {
		return
	}
	g.pairs, g.paced, g.awake = e.pairs, e.pace.Until(), e.awake()
	if e.waiting > 0 && e.since < g.paced {
		g.paced = math.MaxInt64 // it does not fade while waiting for an answer
	}
}

// glanceAt returns the glance of a candidate, or nil.
func glanceAt(glances []glance, c *endpick.Candidate) *glance {
	if int64(c.Ref.Slot) < int64(len(glances)) {
		if g := &glances[c.Ref.Slot]; g.ref == c.Ref && g.endpoint == c.Endpoint {
			return g
		}
	}
	return nil
}

// noted updates the glance of an endpoint from its account; m.mu is held.
func (m *Marginal) noted(ref endpick.Ref, e *endpoint) {
	if int64(ref.Slot) < int64(len(m.glances)) && m.glances[ref.Slot].ref == ref {
		m.glances[ref.Slot].account(e)
	}
}

// meet makes glances of endpoints that are new, or whose description has changed.
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

// place is 1 + the index of a variant, or 0 if there are too many variants.
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
