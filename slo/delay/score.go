package delay

import (
	"math"

	"github.com/endpick/endpick"
)

// cost is what a request would cost on one candidate: the sum of the delays
// of everyone affected, in milliseconds; before anything has been learned, in
// prompt tokens.
type cost struct {
	// TTFT and Decode are the request's own latency: until the first token, and
	// from the first to the last.
	TTFT, Decode float64
	// Weight is how much a millisecond of TTFT counts.
	Weight float64
	// Prefill is the total delay that prefilling the prompt causes: to the requests on
	// the endpoint, to those that these delay, and to those that will have to
	// compute again what it evicts from the cache. Slowdown is how much longer the
	// tokens of the requests on the endpoint take in the larger batch.
	Prefill, Slowdown float64
}

// sum is the cost.
func (c *cost) sum() float64 {
	return c.Weight*c.TTFT + c.Decode + c.Prefill + c.Slowdown
}

// of writes the cost of a candidate.
func (d *decision) of(c *endpick.Candidate, out *cost) {
	e, beside, pace := d.at(c)
	*out = cost{Weight: d.weight}
	p := &c.Prediction
	has := p.Has
	if min(p.TTFT, p.TPOT, p.E2E) < 0 {
		has = 0 // not for this request
	}
	if has&(endpick.TTFT|endpick.TPOT) != endpick.TTFT|endpick.TPOT || !d.req.Stream {
		first, each := d.own(c, e, beside, pace)
		out.TTFT, out.Decode = first, d.output*each
	}
	if has&endpick.TTFT != 0 {
		out.TTFT = milliseconds(p.TTFT)
	}
	switch {
	case d.req.Stream && has&endpick.TPOT != 0:
		out.Decode = d.output * milliseconds(p.TPOT)
	case !d.req.Stream && has&endpick.E2E != 0:
		out.TTFT, out.Decode = 0, milliseconds(p.E2E)
	}
	fresh, pair := compute(d.req, c.PrefixTokens)
	out.Prefill = d.prefill(d.kind, c, fresh, pair, pace)
	out.Slowdown = d.slowdown(d.kind) * (beside * pace)
}

// prefill is the delay of others by the request's prompt: of those on a candidate while
// it is computed and, if that evicts others from a cache, of those who come back for
// them and the requests beside these. These are then as many as on average now: who is on
// the candidate will be gone. What is a copy for later requests, too, counts in part.
func (d *decision) prefill(k *kind, c *endpick.Candidate, fresh, pair, pace float64) float64 {
	own := d.copies.own(c, fresh)
	fresh, pair = fresh*own, pair*own
	took := (k.each[tokens]*fresh + k.each[pairs]*pair) * pace
	again := d.eviction * fresh
	return took*(c.BatchSize()*d.feedback) + again*(d.batch*d.feedback+d.weight)
}

// slowdown is the delay of each request that decodes beside this one. On average, these
// have half of their response left.
func (d *decision) slowdown(k *kind) float64 {
	larger := k.each[batches] + k.each[contexts]*size(d.req, d.output)
	return d.output / 2 * larger
}

// weight is how much a millisecond of waiting counts relative to one of decoding.
// A wait is felt relative to what they are waiting for: shortening the time to
// first token by a tenth counts as much as shortening the whole by a tenth, which
// is a weight of whole/first; adding up milliseconds is a weight of 1. This is the
// geometric mean of the two. The client of a response that does not stream only sees
// the whole.
func (m *marginal) weight(req *endpick.Request) float64 {
	if !req.Stream {
		return 1
	}
	// Before anything is known, the ratio is a sixteenth. First tokens are learned when
	// they arrive, not at the end of the response: in a growing queue, that is one response
	// earlier.
	first, rest := m.first.or(1), m.common.decoding.or(15)
	if m.first.weight == 0 || m.common.decoding.weight == 0 {
		first, rest = 1, 15
	}
	if !(first > 0 && rest > 0) {
		return 1
	}
	return math.Sqrt((first + rest) / first)
}

// eviction is what a computed token costs besides its computation, in milliseconds of everybody
// there: it takes another one's place in a cache.
//
// On average, a token in a cache is found again as often as there are prompt tokens per computed
// token, minus one for its own computation. Whoever misses it computes it again, here or
// elsewhere, so that the cost of that is the mean over all prompts, wherever they go. The token
// that is evicted would have been found less often than the mean, but how much less is only known
// afterwards: no more than two computations count.
func (m *marginal) eviction() float64 {
	found := m.prompt.or(1)/max(m.anew.or(1), 1) - 1
	return min(max(found, 0), mostFound) * m.recomputing()
}

// recomputing is the mean time of a prompt token over those computed recently, wherever
// that was. A single model of all kinds of server can't tell: if fast ones get the longer
// prompts, a token seems to take nearly nothing.
func (m *marginal) recomputing() float64 {
	if m.computed.sum > 0 {
		return m.computing.sum / m.computed.sum
	}
	return m.common.each[tokens]
}

// feedback is by how much delays multiply. A delayed request stays longer and slows those
// that come next, which stay longer, too: if a response takes twice as long as on an
// idle server, so does a delay. But the router sends some of those that come next
// elsewhere; the square root is a compromise.
func (m *marginal) feedback() float64 {
	if m.whole.weight == 0 {
		return 1
	}
	return math.Sqrt(min(max(m.whole.sum/max(m.idle.sum, 1e-3), 1), mostFeedback))
}

const (
	mostFound    = 2
	mostFeedback = 10
)

// Score implements [endpick.Scorer].
func (m *marginal) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	least := m.costs(req, candidates, dst)
	for i, cost := range dst {
		switch {
		case !finite(cost):
			dst[i] = 0
		case cost <= least: // both may be zero
			dst[i] = 1
		default:
			dst[i] = least / cost
		}
	}
}

// costs writes the costs of the candidates, and returns the least.
func (m *marginal) costs(req *endpick.Request, candidates []endpick.Candidate, dst []float64) float64 {
	d := m.decide(req, candidates)
	defer d.end()
	least := math.Inf(1)
	var one cost
	for i := range candidates {
		c := &candidates[i]
		d.of(c, &one)
		dst[i] = one.sum()
		if dst[i] < least {
			least = dst[i]
		}
	}
	return least
}

// Predict implements [endpick.Predictor]. It predicts from measurements on the
// same kind of server, for a new kind on all others. Nine in ten requests stay
// below the upper bounds.
func (m *marginal) Predict(req *endpick.Request, candidates []endpick.Candidate) {
	d := m.decide(req, candidates)
	defer d.end()
	for i := range candidates {
		d.predict(&candidates[i])
	}
}

// predicts reports whether there is anything to predict from.
func (d *decision) predicts() bool { return d.req.InputTokens > 0 && d.m.common.labels > 0 }

// predict sets the prediction of a candidate, if there is anything to predict from.
func (d *decision) predict(c *endpick.Candidate) {
	if !d.predicts() {
		return
	}
	e, beside, pace := d.at(c)
	first, each := d.own(c, e, beside, pace)
	if !finite(first) || !finite(each) {
		return
	}
	p := &c.Prediction
	p.Has |= endpick.TTFT
	p.TTFT, p.TTFTUpper = duration(first), duration(first*d.late)
	if d.req.Stream {
		p.Has |= endpick.TPOT
		p.TPOT, p.TPOTUpper = duration(each), duration(each*d.slow)
		return
	}
	whole := first + d.output*each
	p.Has |= endpick.E2E
	p.E2E, p.E2EUpper = duration(whole), duration(whole*max(d.late, d.slow))
}
