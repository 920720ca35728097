package delay

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/endpick/endpick"
)

// cost is what a request would cost on one candidate: the sum of the delays of everyone
// affected, in milliseconds; before anything has been learned, in prompt tokens.
type cost struct {
	w, ttft float64 // how much a millisecond of TTFT counts, and the request's TTFT, without what is not of F
	n, tpot float64 // tokens of its response, and the time of each
	s       float64 // how much longer a step takes with this request
	bs      float64 // requests that are there
	fk      float64 // F·k: the time to compute its new tokens
	c       float64 // by how much delays multiply
	coming  float64 // λ·min(k·F/2, E2E): requests that will wait for that, of those who come meanwhile
	again   float64 // F·e·k̄: the time to compute again what has to leave the cache
	b       float64 // requests beside whoever computes that again
	waiting float64 // W·(F+n)/K: requests that wait for memory, each for the part that this one takes
	load    float64 // until its model is in memory
	back    float64 // loads of what it evicts for it, as far as they are to be expected
	loads   bool    // it is loaded for this request
}

// parts are what the cost adds up, by what they are for.
func (x *cost) parts() [len(partNames)]float64 {
	work := x.fk * x.c
	return [...]float64{
		x.w * (x.ttft + x.load), x.n * x.tpot, (x.n*x.s + work) * x.bs, work * x.coming,
		x.again*(x.c*x.b+x.w) + x.w*x.back, x.n * x.tpot * x.w * x.waiting,
	}
}

var partNames = [...]string{"its first token", "its other tokens", "the requests there", "those to come", "what it evicts",
	"those who wait for memory"}

// sum is the cost.
func (x *cost) sum() float64 {
	p := x.parts()
	return p[0] + p[1] + p[2] + p[3] + p[4] + p[5]
}

// cost writes the cost of a candidate.
func (d *decision) cost(c *endpick.Candidate, x *cost) {
	d.at(c)
	*x = cost{w: d.w, n: d.n, bs: c.BatchSize(), c: d.c, b: d.b}
	x.ttft, x.tpot = d.predicted(c)
	x.s = d.step * d.pace
	cached := c.PrefixTokens
	if x.bs < 1 { // those who come next need it here, too, and no request alone would pay for it
		cached = max(cached, d.usual(c))
	}
	f, _ := compute(d.req, cached)
	x.fk = d.prefill(cached)
	x.ttft = max(x.ttft-(d.prefill(c.PrefixTokens)-x.fk), 0)
	x.coming = d.rate * min(x.fk/2, d.whole)
	x.again = f * d.lacking * d.again
	if all := float64(c.Endpoint.KVTokens); all > 0 {
		x.waiting = d.waiting * min((f+d.n)/all, 1)
	}
	x.load, x.back, x.loads = d.load(c, nil)
}

// prefill is the time to compute the prompt on the current candidate, of which so many tokens are cached.
func (d *decision) prefill(cached int) float64 {
	f, pairs := compute(d.req, cached)
	return (d.kind.each[tokens]*f + d.kind.each[attention]*pairs) * d.pace
}

// predicted is the request's own latency on the current candidate: that of a Predictor, as
// far as it has predicted any.
func (d *decision) predicted(c *endpick.Candidate) (first, each float64) {
	p := &c.Prediction
	has, rest := p.Has, endpick.TPOT
	if min(p.TTFT, p.TPOT, p.E2E) < 0 {
		has = 0 // not for this request
	}
	if !d.req.Stream {
		rest = endpick.E2E
	}
	if has&endpick.TTFT == 0 || has&rest == 0 {
		first, each = d.latency(c)
	}
	if has&endpick.TTFT != 0 {
		first = milliseconds(p.TTFT)
	}
	switch {
	case has&rest == 0:
	case d.req.Stream:
		each = milliseconds(p.TPOT)
	default:
		whole := milliseconds(p.E2E)
		first = min(first, whole)
		each = (whole - first) / d.n
	}
	return first, each
}

// unit is what the current candidate's cost is in.
func (d *decision) unit() string {
	switch common := &d.m.learned.common; {
	case common.labels == 0:
		return "tokens (nothing is measured yet)"
	case d.kind == common || d.kind.labels == 0:
		return "ms (as on others: nothing of its kind is measured yet)"
	}
	return "ms"
}

// digits are the first four of a number, and none behind its thousandths.
func digits(v float64) string {
	v, _ = strconv.ParseFloat(strconv.FormatFloat(math.Round(1000*v)/1000, 'g', 4, 64), 64)
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// text is the cost, what makes it higher than the least one, and all that it is made of:
//
//	costs 17300 ms, 1204 above the least, most for the requests there: its first token 918, its other tokens 13110,
//	the requests there 2480, … = w 8.2 · TTFT 112 + n 300 · TPOT 43.7 + n · s 0.21 · BS 19 + F·k 61.2 · c 1.1 · (BS + λ·min(k·F/2, E2E) 0.3) +
//	F·e·k̄ 0 · (c · B 12.4 + w) + n · TPOT · w · W·(F+n)/K 0
func (x *cost) text(unit string, goes []string, least *cost) string {
	text := fmt.Sprintf("costs %s %s", digits(x.sum()), unit)
	parts, others, most := x.parts(), least.parts(), 0
	for i := range parts {
		if parts[i]-others[i] > parts[most]-others[most] {
			most = i
		}
	}
	if more := x.sum() - least.sum(); digits(x.sum()) != digits(least.sum()) {
		text += fmt.Sprintf(", %s above the least, most for %s", digits(more), partNames[most])
	}
	for i, part := range parts {
		text += fmt.Sprintf("%c %s %s", ":,,,,,"[i], partNames[i], digits(part))
	}
	text += fmt.Sprintf(
		" = w %.3g · TTFT %s + n %.3g · TPOT %s + n · s %.3g · BS %.3g + F·k %s · c %.3g · (BS + λ·min(k·F/2, E2E) %.3g) + "+
			"F·e·k̄ %s · (c · B %.3g + w) + n · TPOT · w · W·(F+n)/K %.3g",
		x.w, digits(x.ttft), x.n, digits(x.tpot), x.s, x.bs, digits(x.fk), x.c, x.coming, digits(x.again), x.b, x.waiting,
	)
	if x.load > 0 {
		text += fmt.Sprintf(" + w · load %s", digits(x.load))
	}
	if x.back > 0 || len(goes) > 0 {
		text += fmt.Sprintf(" + w · back %s for [%s]", digits(x.back), strings.Join(goes, " "))
	}
	return text
}
