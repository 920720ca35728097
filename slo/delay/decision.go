package delay

import "github.com/endpick/endpick"

// decision is what the candidates of a request have in common. It holds m.mu for reading,
// from marginal.decide to end.
type decision struct {
	m          *marginal
	req        *endpick.Request
	candidates []endpick.Candidate
	now        int64
	output     float64 // expected tokens of the response
	weight     float64
	feedback   float64 // by how much delays of others multiply
	eviction   float64 // what a prompt token's place in a cache costs others, in milliseconds
	copies     copies

	variants      []variantState // seen so far
	*variantState                // of the current candidate; nil at first
	outlook       outlook        // of the current candidate
}

// variantState is what the candidates of one variant have in common.
type variantState struct {
	variant    string
	kind       *kind
	lasting    float64 // the share of a difference in load that lasts
	batch      float64 // mean batch size
	late, slow float64 // upper bounds of TTFT and of the rest, relative to their expected values
}

// decide begins a decision.
func (m *marginal) decide(req *endpick.Request, candidates []endpick.Candidate) *decision {
	d := m.work.Get().(*decision)
	m.mu.RLock()
	d.m, d.req, d.candidates, d.now = m, req, candidates, nanoseconds(req.Now())
	d.output, d.weight, d.feedback, d.eviction = m.lengths.of(req), m.weight(req), m.feedback(), m.eviction()
	d.copies.begin()
	if len(req.Blocks) > 0 {
		d.copies.price(&m.uses, req, candidates, d.now)
	}
	return d
}

// end releases the lock and the working memory.
func (d *decision) end() {
	m := d.m
	m.mu.RUnlock()
	clear(d.variants)
	d.m, d.req, d.candidates, d.variants, d.variantState = nil, nil, nil, d.variants[:0], nil
	m.work.Put(d)
}

// average is the mean batch size of the candidates of a variant. It sums integers, so that
// their order does not matter.
func average(candidates []endpick.Candidate, variant string) float64 {
	var sum, count int64
	for i := range candidates {
		if c := &candidates[i]; c.Endpoint.Variant == variant {
			sum += int64(min(c.BatchSize(), 1<<30) * 1024)
			count++
		}
	}
	return float64(sum) / (1024 * float64(max(count, 1)))
}

// use makes a variant the current one.
func (d *decision) use(variant string) {
	for i := range d.variants {
		if d.variants[i].variant == variant {
			d.variantState = &d.variants[i]
			return
		}
	}
	k := d.m.find(nameOf(d.req, variant))
	lasting := 1.0
	if d.m.without&horizon == 0 {
		lasting = k.persistence.over(k.decoding.or(1))
	}
	d.variants = append(d.variants, variantState{
		variant: variant, kind: k, lasting: lasting, batch: average(d.candidates, variant),
		late: k.late.ratio(), slow: k.slow.ratio(),
	})
	d.variantState = &d.variants[len(d.variants)-1]
}

// at makes c the current candidate. It returns its account, which may be nil, the number of
// requests beside which a request would decode there, and its pace.
func (d *decision) at(c *endpick.Candidate) (e *endpoint, beside, pace float64) {
	if d.variantState == nil || c.Endpoint.Variant != d.variant {
		d.use(c.Endpoint.Variant)
	}
	// The current load does not last: requests end, and new ones go elsewhere.
	// Requests that wait for a place don't decode.
	beside = min(d.batch+d.lasting*(c.BatchSize()-d.batch), places(c)-1)
	e, pace = d.m.endpoints.Find(c.Ref), 1
	if e != nil && d.m.without&ownPace == 0 {
		pace = e.pace.Factor(e.asked(d.now))
	}
	return e, beside, pace
}

// own returns the request's own latencies on a candidate, in milliseconds: to
// the first token, and for each one after it.
func (d *decision) own(c *endpick.Candidate, e *endpoint, beside, pace float64) (first, each float64) {
	k, o := d.kind, &d.outlook
	d.m.look(o, d.req, c, e, k, d.output)
	o.step[batches] = beside + 1
	o.step[contexts] = beside*o.held + o.size
	first = k.of(&o.first) * pace
	if e != nil {
		first += float64(e.lasts(d.now)) / 1e6
	}
	return first, k.of(&o.step) * pace
}
