package delay

import (
	"math"

	"github.com/endpick/endpick"
)

// Filter implements [endpick.Filter], for Policy.Shortlist: it keeps the candidates with
// the least cost, and predicts them, so that the others need not be predicted and scored.
// The candidate with the highest score is the same with and without it. Leave it out of a
// policy that has another Predictor, further scorers, a picker that randomizes, or filters
// that read predictions.
//
// It has no opinion if predictions of all candidates are needed: for requests with an SLO,
// while the TPOT target of a running request has to be met, and for a receipt.
//
// The full cost is worked out only for candidates that may be the best. Every candidate
// has a lower bound, which is a coarser form of the same sum. The cost of the likeliest
// candidate is worked out first, and a candidate whose bound is above it is skipped.
func (m *Marginal) Filter(req *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	if len(candidates) < 2 || req.Receipt != nil || req.SLO.Asked() || m.bound.Load() > 0 {
		return candidates
	}
	left, known := m.least(req, candidates)
	if !known {
		m.meet(candidates)
		left, _ = m.least(req, candidates)
	}
	return left
}

// least moves the candidates of the least cost to the front and returns them, or returns
// all. known is false if some have no glance yet.
func (m *Marginal) least(req *endpick.Request, candidates []endpick.Candidate) (left []endpick.Candidate, known bool) {
	j := m.judge(req, candidates)
	defer j.end()
	if !j.survey() {
		return candidates, false
	}
	return j.best(), true
}

// bounds has numbers for each candidate. Of many candidates, it is much smaller than they
// are, so that going over it again is cheap.
type bounds struct {
	least  []float64 // lower bound of the cost
	costs  []float64 // NaN if not computed
	beside []beside
}

// beside is by how much the lower bound grows with the requests that decode beside a request.
type beside struct {
	each  float64 // for each of them
	batch float64 // how many there are now
	most  float64 // how many may be
	turn  int     // index of the candidate's variant in judge.turns
}

func (b *bounds) begin(n int) {
	if cap(b.least) < n {
		b.least, b.costs, b.beside = make([]float64, n+n/4), make([]float64, n+n/4), make([]beside, n+n/4)
	}
	b.least, b.costs, b.beside = b.least[:n], b.costs[:n], b.beside[:n]
}

// rates are the coefficients of the cost on servers of a variant, in milliseconds.
type rates struct {
	base            float64 // on an idle server
	token, pair     float64
	batch, context  float64
	blocked         float64 // of waiting for the whole memory
	slowdown        float64
	waiting, stands float64 // per request: tokens to compute if it waits, and tokens in memory
}

func (j *judge) ratesOf(t *turn) rates {
	k, without := t.kind, j.m.config.Without
	r := rates{
		token: k.each[tokens], pair: k.each[pairs], batch: k.each[batches], context: k.each[contexts],
		slowdown: j.slowdown(k), waiting: k.fresh.or(1), stands: k.size.or(1),
	}
	step := k.each[steps] + r.batch + float64(r.context*size(j.req, j.output))
	if k.meanSteps > 0 {
		step += (float64(r.token*k.meanwhile[tokens]) + float64(r.pair*k.meanwhile[pairs])) / k.meanSteps
	}
	r.base = float64(j.weight*(k.each[requests]+float64(firstSteps*k.each[steps]))) + float64(j.output*step)
	if without&Room == 0 {
		r.blocked = float64(j.weight * k.each[blocked] * k.decoding.or(0))
	}
	return r
}

// survey computes the bounds; false if a candidate has no glance yet.
func (j *judge) survey() bool {
	m, b := j.m, &j.bounds
	b.begin(len(j.candidates))
	crowd, again := j.echo, j.weight
	if m.config.Without&Prefill != 0 {
		crowd, again = 0, 0
	}
	var t *turn
	at := 0
	for i := range j.candidates {
		c := &j.candidates[i]
		if int64(c.Ref.Slot) >= int64(len(m.glances)) {
			return false
		}
		g := &m.glances[c.Ref.Slot]
		if g.ref != c.Ref || g.endpoint != c.Endpoint {
			return false
		}
		if t == nil || t.id != g.variant || g.variant == 0 {
			at = j.turnOf(g.variant, c)
			t = &j.turns[at]
		}
		t.load.add(c)
		r := &t.rates
		fresh, pair := compute(j.req, c.PrefixTokens)
		mine, minePair := fresh, pair
		if c.EvictedTokens > 0 {
			mine, minePair = compute(j.req, c.CachedTokens())
		}
		batch, held := c.BatchSize(), r.stands
		if n := c.InFlight.Requests; n > 0 {
			held = float64(c.InFlight.ContextTokens+c.InFlight.OutputTokens) / float64(n)
		}
		queued := float64(c.InFlight.PrefillTokens)
		if foreign := c.Waiting - float64(c.InFlight.Prefilling); foreign > 0 {
			queued += foreign * r.waiting
		}
		step := r.batch + r.context*held
		own := j.copies.own(c, fresh)
		each := j.output*step + r.slowdown
		least := r.base + j.weight*(r.token*(mine+queued)+r.pair*(minePair+g.pairs)+firstSteps*min(batch, g.places)*step) +
			(r.token*fresh+r.pair*pair)*own*batch*crowd
		if missing := g.missing(c, mine+queued, batch); missing > 0 {
			least += r.blocked * missing
		}
		if g.special(j.now) {
			pace, silent := j.special(c)
			least, each = least*pace+j.weight*silent, each*pace
		}
		b.least[i] = least + j.worth*fresh*own*(batch*crowd+again)
		b.beside[i] = beside{each: each, batch: batch, most: g.places - 1, turn: at}
	}
	j.complete()
	return true
}

// turnOf returns the index of the candidate's variant, given by its place.
func (j *judge) turnOf(id uint8, c *endpick.Candidate) int {
	for i := range j.turns {
		if t := &j.turns[i]; t.id == id && (id != 0 || t.variant == c.Endpoint.Variant) {
			return i
		}
	}
	j.begin(c.Endpoint.Variant)
	j.turn.id = id
	j.turn.rates = j.ratesOf(j.turn)
	return len(j.turns) - 1
}

// missing is the share of memory, or of places in the batch, that is lacking; see wait.
func (g *glance) missing(c *endpick.Candidate, needed, batch float64) (missing float64) {
	if g.perToken > 0 && c.Reported&endpick.KVUsageSignal != 0 {
		missing = c.KVUsage + needed*g.perToken - 1
	}
	if batch+1 > g.places {
		missing = max(missing, (batch+1)/g.places-1)
	}
	return missing
}

// special returns the pace of a candidate, and for how many milliseconds it has been
// silent.
func (j *judge) special(c *endpick.Candidate) (pace, silent float64) {
	e := j.m.endpoints.Find(c.Ref)
	if e == nil {
		return 1, 0
	}
	pace = 1
	if j.m.config.Without&Pace == 0 {
		pace = e.pace.Factor(e.asked(j.now))
	}
	return pace, float64(e.lasts(j.now)) / 1e6
}

// complete adds to the bounds what depends on the mean loads, once these are known:
// the requests beside which a request would decode.
func (j *judge) complete() {
	b := &j.bounds
	for i := range j.turns {
		t := &j.turns[i]
		t.batch = t.load.mean()
	}
	predicts := j.predicts()
	for i := range b.least {
		s := &b.beside[i]
		t := &j.turns[s.turn]
		v := b.least[i] + min(t.batch+t.lasting*(s.batch-t.batch), s.most)*s.each
		// Predictions are capped at maxLatency.
		if !(v >= 0) || predicts && v >= maxLatency {
			v = 0
		}
		b.least[i] = v
	}
}

// best moves the candidates of the least cost to the front and returns them.
func (j *judge) best() []endpick.Candidate {
	b, first := &j.bounds, 0
	for i, v := range b.least {
		b.costs[i] = math.NaN()
		if v < b.least[first] {
			first = i
		}
	}
	// Predictions are rounded to whole nanoseconds.
	slack := 2e-6 * (j.weight + j.output)
	least, last := j.cost(first), first
	for i, v := range b.least {
		switch {
		case i == first || v*(1-1e-9)-slack > least:
		case j.alike(i, last):
			b.costs[i] = b.costs[last]
			j.candidates[i].Prediction = j.candidates[last].Prediction
		default:
			if v := j.cost(i); v < least {
				least = v
			}
			last = i
		}
	}
	if !finite(least) {
		return j.candidates
	}
	n := 0
	for i, v := range b.costs {
		if math.IsNaN(v) {
			continue // nor predicted
		}
		c := &j.candidates[i]
		if v > least {
			c.Prediction = endpick.Prediction{}
			continue
		}
		if i != n {
			*c, j.candidates[n] = j.candidates[n], *c
		}
		n++
	}
	all, left := j.candidates, j.candidates[:n]
	if n > 1 && !j.equals(left) {
		return all
	}
	return left
}

// cost computes the full cost of a candidate, like Predict and Score.
func (j *judge) cost(i int) float64 {
	var cost Cost
	j.predict(&j.candidates[i])
	j.of(&j.candidates[i], &cost)
	j.bounds.costs[i] = cost.Sum()
	return j.bounds.costs[i]
}

// alike reports whether two candidates are in the same state, and so cost the same.
func (j *judge) alike(a, b int) bool {
	c, d := &j.candidates[a], &j.candidates[b]
	if j.bounds.least[a] != j.bounds.least[b] || c.PrefixTokens != d.PrefixTokens || c.EvictedTokens != d.EvictedTokens || c.Waiting != d.Waiting || c.Running != d.Running ||
		c.InFlight != d.InFlight {
		return false
	}
	g, h := &j.m.glances[c.Ref.Slot], &j.m.glances[d.Ref.Slot]
	if g.perToken > 0 && (c.KVUsage != d.KVUsage || c.Reported != d.Reported) {
		return false
	}
	return g.variant == h.variant && g.variant != 0 && g.pairs == h.pairs && g.perToken == h.perToken && g.places == h.places &&
		!g.special(j.now) && !h.special(j.now)
}

// equals reports whether candidates of equal cost would also be equal if Score saw no
// others, and so another mean load.
func (j *judge) equals(left []endpick.Candidate) bool {
	for i := range j.turns {
		j.turns[i].batch = average(left, j.turns[i].variant)
	}
	j.copy(left)
	var first, cost Cost
	j.of(&left[0], &first)
	for i := 1; i < len(left); i++ {
		if j.of(&left[i], &cost); cost.Sum() != first.Sum() {
			return false
		}
	}
	return true
}
