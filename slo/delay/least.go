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
// has a lower bound, which is a coarser form of the same sum. A candidate whose bound is
// above the cost of another one is skipped, and candidates in the same state, as in an idle
// fleet, share one computation.
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
	j := m.begin(req, candidates)
	defer j.end()
	if !j.survey() {
		return candidates, false
	}
	return j.best(j.narrow()), true
}

// rates are the coefficients of the cost on servers of a variant, in milliseconds.
type rates struct {
	base            float64 // on an idle server
	token, pair     float64
	batch, context  float64
	blocked         float64 // of waiting for the whole memory
	slowdown        float64
	crowd, again    float64 // how much a delay counts: of each request there, and of who comes back for what is evicted
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
	if without&Prefill == 0 {
		r.crowd, r.again = j.echo, j.weight
	}
	return r
}

// survey looks at all candidates for what the cost of each depends on: the mean load of its
// variant, and which depths of the prompt are held. It is false if one has no glance yet.
func (j *judge) survey() bool {
	m, copying := j.m, j.m.copying(j.req)
	candidates, glances := j.candidates, m.glances
	j.copies.begin()
	var t *turn
	at := 0
	for i := range candidates {
		c := &candidates[i]
		g := glanceAt(glances, c)
		if g == nil {
			return false
		}
		if t == nil || t.id != g.variant || g.variant == 0 {
			t = j.turnOf(g.variant, c)
		}
		t.load.add(c)
		if h := c.PrefixTokens; h > 0 && copying {
			at = j.copies.add(h, at)
		}
	}
	for i := range j.turns {
		j.turns[i].batch = j.turns[i].load.mean()
	}
	j.copies.share(&m.uses, j.req, j.now)
	return true
}

// turnOf returns the variant of a candidate, given by its place.
func (j *judge) turnOf(id uint8, c *endpick.Candidate) *turn {
	for i := range j.turns {
		if t := &j.turns[i]; t.id == id && (id != 0 || t.variant == c.Endpoint.Variant) {
			return t
		}
	}
	j.begin(c.Endpoint.Variant)
	j.turn.id, j.turn.rates = id, j.ratesOf(j.turn)
	return j.turn
}

// possible is a candidate that may be the best.
type possible struct {
	at     int     // its index
	least  float64 // lower bound of its cost
	cost   float64 // NaN if not known
	copied bool    // from a candidate that is alike
}

// early is how many candidates are listed before the cost of the likeliest of them is computed, so
// that most of the others need not be listed. It is computed again at twice as many, and so on.
const early = 64

// narrow lists the candidates that may be the best, and returns the likeliest.
func (j *judge) narrow() *possible {
	j.possible = j.possible[:0]
	limit, first, next := math.Inf(1), 0, early
	candidates, glances := j.candidates, j.m.glances
	var t *turn
	for i := range candidates {
		c := &candidates[i]
		g := &glances[c.Ref.Slot]
		if t == nil || t.id != g.variant || g.variant == 0 {
			t = j.turnOf(g.variant, c)
		}
		v := j.bound(c, g, t, limit)
		if v > limit {
			continue
		}
		j.possible = append(j.possible, possible{at: i, least: v, cost: math.NaN()})
		if v < j.possible[first].least {
			first = len(j.possible) - 1
		}
		if len(j.possible) == next {
			limit = min(limit, j.limit(j.cost(&j.possible[first])))
			next *= 2
		}
	}
	return &j.possible[first]
}

// limit is the highest lower bound of a candidate that may cost no more than this.
func (j *judge) limit(cost float64) float64 {
	// Predictions are rounded to whole nanoseconds, and capped at maxLatency.
	v := (cost + 2e-6*(j.weight+j.output)) * (1 + 1e-9)
	if v >= min(j.weight, 1)*maxLatency && j.predicts() {
		return math.Inf(1)
	}
	return v
}

// bound returns a lower bound of a candidate's cost, or only a part of it if that is above the
// limit.
func (j *judge) bound(c *endpick.Candidate, g *glance, t *turn, limit float64) float64 {
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
	those := min(t.batch+t.lasting*(batch-t.batch), g.places-1)
	least := r.base + j.weight*(r.token*(mine+queued)+r.pair*(minePair+g.pairs)+firstSteps*min(batch, g.places)*step) +
		those*(j.output*step+r.slowdown)
	special := g.special(j.now)
	if least > limit && !special {
		return least
	}
	own := j.copies.own(c, fresh)
	least += (r.token*fresh + r.pair*pair) * own * batch * r.crowd
	if missing := g.missing(c, mine+queued, batch); missing > 0 {
		least += r.blocked * missing
	}
	if special {
		pace, silent := j.special(c)
		least = least*pace + j.weight*silent
	}
	return least + j.worth*fresh*own*(t.batch*r.crowd+r.again)
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

// best moves the candidates of the least cost to the front and returns them. last is the likeliest.
func (j *judge) best(last *possible) []endpick.Candidate {
	least := j.cost(last)
	limit := j.limit(least)
	for i := range j.possible {
		p := &j.possible[i]
		switch {
		case !math.IsNaN(p.cost) || p.least > limit:
		case p.least == last.least && j.alike(&j.candidates[p.at], &j.candidates[last.at]):
			p.cost, p.copied = last.cost, true
			j.candidates[p.at].Prediction = j.candidates[last.at].Prediction
		default:
			j.cost(p)
			last = p
		}
		if p.cost < least {
			least, limit = p.cost, j.limit(p.cost)
		}
	}
	if !finite(least) {
		return j.candidates
	}
	n, computed := 0, j.possible[:0]
	for _, p := range j.possible {
		if math.IsNaN(p.cost) {
			continue // nor predicted
		}
		c := &j.candidates[p.at]
		if p.cost > least {
			c.Prediction = endpick.Prediction{}
			continue
		}
		if p.at != n {
			*c, j.candidates[n] = j.candidates[n], *c
		}
		if !p.copied {
			computed = append(computed, possible{at: n})
		}
		n++
	}
	all, left := j.candidates, j.candidates[:n]
	if 1 < n && n < len(all) && !j.equals(left, computed) {
		return all
	}
	return left
}

// cost computes the full cost of a candidate, like Predict and Score, once.
func (j *judge) cost(p *possible) float64 {
	if math.IsNaN(p.cost) {
		var cost Cost
		j.predict(&j.candidates[p.at])
		j.of(&j.candidates[p.at], &cost)
		p.cost = cost.Sum()
	}
	return p.cost
}

// alike reports whether two candidates are in the same state, and so cost the same. If one has no
// glance, that is not known.
func (j *judge) alike(c, d *endpick.Candidate) bool {
	if c.PrefixTokens != d.PrefixTokens || c.EvictedTokens != d.EvictedTokens || c.Waiting != d.Waiting || c.Running != d.Running ||
		c.InFlight != d.InFlight {
		return false
	}
	g, h := glanceAt(j.m.glances, c), glanceAt(j.m.glances, d)
	if g == nil || h == nil || c.KVUsage != d.KVUsage || c.Reported != d.Reported {
		return false
	}
	return g.variant == h.variant && g.variant != 0 && g.pairs == h.pairs && g.perToken == h.perToken && g.places == h.places &&
		!g.special(j.now) && !h.special(j.now)
}

// equals reports whether candidates of equal cost would also be equal if Score saw no
// others, and so another mean load. Only the computed ones can differ; the others are each like
// one of them.
func (j *judge) equals(left []endpick.Candidate, computed []possible) bool {
	for i := range j.turns {
		j.turns[i].batch = average(left, j.turns[i].variant)
	}
	j.copy(left)
	var first, cost Cost
	j.of(&left[computed[0].at], &first)
	for _, p := range computed[1:] {
		if j.of(&left[p.at], &cost); cost.Sum() != first.Sum() {
			return false
		}
	}
	return true
}
