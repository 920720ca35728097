package delay

import (
	"github.com/endpick/endpick"
)

// judge is what the candidates of a request have in common. It holds m.mu for reading,
// from Marginal.judge to end.
type judge struct {
	m          *Marginal
	req        *endpick.Request
	candidates []endpick.Candidate
	now        int64
	output     float64 // expected tokens of the response
	weight     float64
	echo       float64 // by how much delays of others multiply
	worth      float64 // of a prompt token's place in a cache, in milliseconds
	copies     copies

	turns []turn // of the variants seen so far
	*turn        // of the current variant; nil at first
	sight sight  // of the current candidate
}

// turn is what the candidates of one variant have in common.
type turn struct {
	variant    string
	kind       *kind
	lasting    float64 // the share of a difference in load that lasts
	batch      float64 // mean batch size
	late, slow float64 // upper bounds of TTFT and of the rest, relative to their expected values
}

// judge begins a request.
func (m *Marginal) judge(req *endpick.Request, candidates []endpick.Candidate) *judge {
	j := m.begin(req, candidates)
	j.copy(candidates)
	return j
}

// begin does the same without looking at the candidates.
func (m *Marginal) begin(req *endpick.Request, candidates []endpick.Candidate) *judge {
	j := m.work.Get().(*judge)
	m.mu.RLock()
	j.m, j.req, j.candidates, j.now = m, req, candidates, nanoseconds(req.Now())
	j.output, j.weight, j.echo, j.worth = m.lengths.of(req), m.weight(req), m.echo(), m.worth()
	return j
}

// copy prepares what copies cost among these candidates.
func (j *judge) copy(candidates []endpick.Candidate) {
	if j.copies.begin(); j.m.copying(j.req) {
		j.copies.price(&j.m.uses, j.req, candidates, j.now)
	}
}

// end releases the lock and the working memory.
func (j *judge) end() {
	m := j.m
	m.mu.RUnlock()
	clear(j.turns)
	j.m, j.req, j.candidates, j.turns, j.turn = nil, nil, nil, j.turns[:0], nil
	m.work.Put(j)
}

// begin begins a new variant. Its mean load is set by the caller.
func (j *judge) begin(variant string) {
	k := j.m.find(nameOf(j.req, variant))
	lasting := 1.0
	if j.m.config.Without&Horizon == 0 {
		lasting = k.persistence.over(k.decoding.or(1))
	}
	j.turns = append(j.turns, turn{variant: variant, kind: k, lasting: lasting, late: k.late.ratio(), slow: k.slow.ratio()})
	j.turn = &j.turns[len(j.turns)-1]
}

// load sums the load of the candidates of a variant, in integers, so that their order
// does not matter.
type load struct{ sum, count int64 }

func (l *load) add(c *endpick.Candidate) {
	l.sum += int64(min(c.BatchSize(), 1<<30) * 1024)
	l.count++
}

func (l *load) mean() float64 { return float64(l.sum) / (1024 * float64(max(l.count, 1))) }

// average is the mean batch size of the candidates of a variant.
func average(candidates []endpick.Candidate, variant string) float64 {
	var l load
	for i := range candidates {
		if c := &candidates[i]; c.Endpoint.Variant == variant {
			l.add(c)
		}
	}
	return l.mean()
}

// turnTo makes the variant of a candidate the current one.
func (j *judge) turnTo(variant string) {
	for i := range j.turns {
		if j.turns[i].variant == variant {
			j.turn = &j.turns[i]
			return
		}
	}
	j.begin(variant)
	j.batch = average(j.candidates, variant)
}

// at makes c the current candidate. It returns its kind, its account, which may
// be nil, the number of requests beside which a request would decode there, and
// its pace.
func (j *judge) at(c *endpick.Candidate) (e *endpoint, those, pace float64) {
	if j.turn == nil || c.Endpoint.Variant != j.variant {
		j.turnTo(c.Endpoint.Variant)
	}
	// The current load does not last: requests end, and new ones go elsewhere.
	// Requests that wait for a place don't decode.
	those = min(j.batch+j.lasting*(c.BatchSize()-j.batch), places(c)-1)
	e, pace = j.m.endpoints.Find(c.Ref), 1
	if e != nil && j.m.config.Without&Pace == 0 {
		pace = e.pace.Factor(e.asked(j.now))
	}
	return e, those, pace
}

// own returns the request's own latencies on a candidate, in milliseconds: to
// the first token, and for each one after it.
func (j *judge) own(c *endpick.Candidate, e *endpoint, those, pace float64) (first, each float64) {
	k, s := j.kind, &j.sight
	j.m.see(s, j.req, c, e, k, j.output)
	s.step[batches] = those + 1
	s.step[contexts] = those*s.held + s.size
	first = k.of(&s.first) * pace
	if e != nil {
		first += float64(e.lasts(j.now)) / 1e6
	}
	return first, k.of(&s.step) * pace
}
