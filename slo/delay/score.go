package delay

import (
	"math"

	"github.com/endpick/endpick"
)

// Cost is what a request would cost on one candidate, in milliseconds of
// somebody's time; before there is a label, in prompt tokens.
type Cost struct {
	// TTFT and Decode are the request's own: until the first token, and from it to
	// the last.
	TTFT, Decode float64
	// Weight is how much a millisecond of TTFT counts.
	Weight float64
	// Prefill is how long the request's prompt keeps those on the endpoint waiting,
	// all of them together and whoever it comes back to; Slowdown is how much longer
	// their tokens take in the larger batch.
	Prefill, Slowdown float64
}

// Sum is the cost.
func (c *Cost) Sum() float64 {
	return float64(c.Weight*c.TTFT) + c.Decode + c.Prefill + c.Slowdown
}

// judge is what the candidates of a request have in common. m.mu is held as long
// as it is used.
type judge struct {
	m          *Marginal
	req        *endpick.Request
	candidates []endpick.Candidate
	now        int64
	output     float64 // tokens of the response
	weight     float64
	echo       float64 // how often a delay of others counts
	worth      float64 // what the place of a prompt token in a cache is, in milliseconds

	// Of the variant that it is at.
	seen    bool
	variant string
	kind    *kind
	lasting float64 // part of a difference in load
	batch   float64 // the mean

	sight sight // of the candidate that it looks at
}

func (m *Marginal) judge(req *endpick.Request, candidates []endpick.Candidate) judge {
	return judge{
		m: m, req: req, candidates: candidates, now: nanoseconds(req.Now()),
		output: m.lengths.of(req), weight: m.weight(req), echo: m.echo(), worth: m.worth(),
	}
}

// turn takes up the kind of a candidate.
func (j *judge) turn(c *endpick.Candidate) {
	m := j.m
	j.variant, j.seen = c.Endpoint.Variant, true
	j.kind = m.find(nameOf(j.req, c.Endpoint))
	j.batch = average(j.candidates, j.variant)
	j.lasting = 1
	if m.config.Without&Horizon == 0 {
		j.lasting = j.kind.persistence.over(j.kind.decoding.or(1))
	}
}

// average is the mean batch of the candidates of a variant. It adds whole numbers,
// so that their order changes nothing.
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

// at takes up a candidate: its kind, its account, which may be nil, how many a
// request would decode with there, and its pace.
func (j *judge) at(c *endpick.Candidate) (e *endpoint, those, pace float64) {
	if !j.seen || c.Endpoint.Variant != j.variant {
		j.turn(c)
	}
	// What is there now does not stay: requests end, and others go elsewhere.
	those = j.batch + float64(j.lasting*(c.BatchSize()-j.batch))
	e, pace = j.m.endpoints.Find(c.Ref), 1
	if e != nil && j.m.config.Without&Pace == 0 {
		pace = e.pace.Factor(e.asked(j.now))
	}
	return e, those, pace
}

// own returns the request's own latencies on a candidate, in milliseconds: until
// the first token, and for each one after it.
func (j *judge) own(c *endpick.Candidate, e *endpoint, those, pace float64) (first, each float64) {
	k, s := j.kind, &j.sight
	j.m.see(s, j.req, c, e, k, j.output)
	s.step[batches] = those + 1
	s.step[contexts] = float64(those*s.held) + s.size
	first = float64(k.of(&s.first) * pace)
	if e != nil {
		first += float64(e.lasts(j.now)) / 1e6
	}
	return first, float64(k.of(&s.step) * pace)
}

// of writes the cost of a candidate.
func (j *judge) of(c *endpick.Candidate, out *Cost) {
	e, those, pace := j.at(c)
	m, k := j.m, j.kind
	*out = Cost{Weight: j.weight}
	p := &c.Prediction
	has := p.Has
	if min(p.TTFT, p.TPOT, p.E2E) < 0 {
		has = 0 // they can't be
	}
	if has&(endpick.TTFT|endpick.TPOT) != endpick.TTFT|endpick.TPOT || !j.req.Stream {
		first, each := j.own(c, e, those, pace)
		out.TTFT, out.Decode = first, float64(j.output*each)
	}
	if has&endpick.TTFT != 0 {
		out.TTFT = milliseconds(p.TTFT)
	}
	switch {
	case j.req.Stream && has&endpick.TPOT != 0:
		out.Decode = float64(j.output * milliseconds(p.TPOT))
	case !j.req.Stream && has&endpick.E2E != 0:
		out.TTFT, out.Decode = 0, milliseconds(p.E2E)
	}
	if m.config.Without&Prefill == 0 {
		fresh, pair := compute(j.req, c)
		took := float64(float64(k.each[tokens]*fresh)+float64(k.each[pairs]*pair)) * pace
		out.Prefill = float64(took+float64(j.worth*fresh)) * float64(c.BatchSize()*j.echo)
	}
	if m.config.Without&Slowdown == 0 {
		// Those who are there have half of their responses before them, in the mean.
		larger := k.each[batches] + float64(k.each[contexts]*size(j.req, j.output))
		out.Slowdown = float64(j.output/2*larger) * float64(those*pace)
	}
}

// weight is how much a millisecond of waiting counts beside one of decoding. What
// is felt of it is its part of what is waited for: to make the time to first token
// shorter by a tenth is worth as much as to make the whole shorter by a tenth, which
// is a weight of whole/first; and who only adds up says 1. This is the geometric
// mean of the two. The client of a response that does not stream sees the whole
// alone.
func (m *Marginal) weight(req *endpick.Request) float64 {
	if !req.Stream || m.config.Without&Weight != 0 {
		return 1
	}
	// Before anything is known, the one is a sixteenth of the other.
	first, whole := m.common.first.or(1), m.common.whole.or(16)
	if !(first > 0 && whole > first) {
		return 1
	}
	return math.Sqrt(whole / first)
}

// worth is what a computed token costs besides its computation, in milliseconds of
// everybody who is there: it takes the place of another in a cache.
//
// A token in a cache is found again as often as there are tokens of prompts for one
// that has to be computed, in the mean, less the one time that it was computed, and
// whoever does not find it computes it again, here or elsewhere, so that what that
// takes is what it takes servers in the mean. The last one to go is worth less than
// the mean, and how much less is known only once it has gone: more than two
// computations are not counted.
func (m *Marginal) worth() float64 {
	if m.config.Without&Worth != 0 {
		return 0
	}
	found := m.prompt.or(1)/max(m.anew.or(1), 1) - 1
	return min(max(found, 0), mostWorth) * m.common.each[tokens]
}

// echo is how often a delay counts: it comes back. Who is delayed stays longer, slows
// those who come next, and they stay longer: where a response takes twice what it would
// on an idle server, a delay there does too. The router sends some of them elsewhere,
// where less comes back; the root stands between all and nothing of it.
func (m *Marginal) echo() float64 {
	k := &m.common
	if m.config.Without&Crowding != 0 || k.whole.weight == 0 {
		return 1
	}
	each := k.each[steps] + k.each[batches] + float64(k.each[contexts]*k.size.or(0))
	idle := float64(k.output.or(1)*each) + float64(k.each[tokens]*k.fresh.or(0))
	return math.Sqrt(min(max(k.whole.or(0)/max(idle, 1e-3), 1), mostCrowding))
}

const (
	mostWorth    = 2
	mostCrowding = 10
)

// Score implements [endpick.Scorer].
func (m *Marginal) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	least := math.Inf(1)
	m.mu.RLock()
	j := m.judge(req, candidates)
	var cost Cost
	for i := range candidates {
		j.of(&candidates[i], &cost)
		dst[i] = cost.Sum()
		if dst[i] < least {
			least = dst[i]
		}
	}
	m.mu.RUnlock()
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

// Predict implements [endpick.Predictor]. It predicts what has been measured on
// some kind of server; of one that is new, as of all others. The upper bounds are
// those that nine in ten have kept.
func (m *Marginal) Predict(req *endpick.Request, candidates []endpick.Candidate) {
	if req.InputTokens <= 0 {
		return
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.common.labels == 0 {
		return
	}
	j := m.judge(req, candidates)
	for i := range candidates {
		c := &candidates[i]
		e, those, pace := j.at(c)
		first, each := j.own(c, e, those, pace)
		if !finite(first) || !finite(each) {
			continue
		}
		late, slow := j.kind.late.ratio(), j.kind.slow.ratio()
		p := &c.Prediction
		p.Has |= endpick.TTFT
		p.TTFT, p.TTFTUpper = duration(first), duration(float64(first*late))
		if req.Stream {
			p.Has |= endpick.TPOT
			p.TPOT, p.TPOTUpper = duration(each), duration(float64(each*slow))
			continue
		}
		whole := first + float64(j.output*each)
		p.Has |= endpick.E2E
		p.E2E, p.E2EUpper = duration(whole), duration(float64(whole*max(late, slow)))
	}
}
