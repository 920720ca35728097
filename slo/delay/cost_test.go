package delay

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var start = time.Unix(1e9, 0)

// costOf is the cost of a request on the second of two candidates, the first of which is
// idle.
func costOf(m *marginal, req endpick.Request, c endpick.Candidate) (out cost) {
	cs := []endpick.Candidate{{Endpoint: &endpick.Endpoint{ID: "idle"}, Ref: endpick.EndpointRef{Slot: 0, Generation: 1}}, c}
	if c.Endpoint == nil {
		cs[1].Endpoint = &endpick.Endpoint{ID: "b"}
	}
	cs[1].Ref = endpick.EndpointRef{Slot: 1, Generation: 1}
	req = req.At(start, 1, 1)
	d := m.decide(&req, cs)
	defer d.end()
	d.survey()
	d.cost(&cs[1], &out)
	return out
}

var (
	// 2,000 tokens to compute behind 1,000 that are queued; 3,150 in memory
	// halfway through the expected 300 output tokens.
	asked = endpick.Request{Model: "m", InputTokens: 3000, Stream: true}
	idle  = endpick.Candidate{PrefixTokens: 1000}
	// Four requests are there, one of them waiting; this router's two have 2,050 tokens each.
	busy = endpick.Candidate{
		PrefixTokens: 1000, Waiting: 1, Running: 3,
		InFlight: endpick.InFlight{Requests: 2, Prefilling: 1, PrefillTokens: 500, ContextTokens: 4000, OutputTokens: 100},
	}
)

// alike checks that two costs have the same parts.
func alike(t *testing.T, want, got cost, name string) {
	for i, pair := range [][2]float64{
		{want.w, got.w}, {want.ttft, got.ttft}, {want.n, got.n}, {want.tpot, got.tpot}, {want.s, got.s}, {want.bs, got.bs},
		{want.fk, got.fk}, {want.c, got.c}, {want.coming, got.coming}, {want.again, got.again}, {want.b, got.b}, {want.waiting, got.waiting},
	} {
		assert.InDelta(t, pair[0], pair[1], 1e-6*max(1, math.Abs(pair[0])), "%s: part %d", name, i)
	}
}

// The formula, with a number that no other combination of its parts has.
func TestTheFormulaByHand(t *testing.T) {
	x := cost{w: 3, ttft: 100, n: 20, tpot: 10, s: 0.5, bs: 7, fk: 40, c: 2, coming: 0.5, again: 60, b: 5, waiting: 0.25}
	assert.InDelta(t, 300+200+70+40*2*7.5+60*(2*5+3)+20*10*3*0.25, x.sum(), 1e-9)
	parts := "its first token 300, its other tokens 200, the requests there 630, those to come 40, what it evicts 780, those who wait for memory 150 = " +
		"w 3 · TTFT 100 + n 20 · TPOT 10 + n · s 0.5 · BS 7 + F·k 40 · c 2 · (BS + λ·min(k·F/2, E2E) 0.5) + F·e·k̄ 60 · (c · B 5 + w) + n · TPOT · w · W·(F+n)/K 0.25"
	assert.Equal(t, "costs 2100 ms: "+parts, x.text("ms", nil, &x))
	least := x
	least.ttft -= 1e-4
	assert.Equal(t, "costs 2100 ms: "+parts, x.text("ms", nil, &least), "not by what nobody sees")
	assert.Equal(t, []string{"60600", "0.123", "17.06", "0"}, []string{digits(60_597), digits(0.12345), digits(17.056), digits(8.9e-6)})
	least.ttft = x.ttft
	least.bs, least.n = 0, 25
	assert.Equal(t, "costs 2100 ms, 542.5 above the least, most for the requests there: "+parts, x.text("ms", nil, &least))
	least.bs, least.n = 5, x.n
	assert.Equal(t, "costs 2100 ms, 180 above the least, most for the requests there: "+parts, x.text("ms", nil, &least), "the part that differs most, not the largest")
}

// Before the first label, costs are in prompt tokens: 1 a token, 1/30,000 a pair, 300 a
// request, 200 a step, 0.5 a request in a step and 1/1,000 a token in memory.
func TestCostsByHand(t *testing.T) {
	const attention = 2000 * (1000 + 2000/2) / 30_000.
	const s = 0.5 + 3.15
	m := newMarginal(Config{})
	first := cost{w: 5, ttft: 300 + 2000 + attention, n: 300, tpot: 200 + s, s: s, fk: 2000 + attention, c: 1, again: 2000}
	alike(t, first, costOf(m, asked, idle), "idle")
	// Beside an idle server, the mean of √4 and 0 is 1.
	onBusy := first
	onBusy.ttft, onBusy.tpot = 300+2500+attention+200/2+1.5*4*(0.5+2.05), 200+5*0.5+4*2.05+3.15
	onBusy.bs, onBusy.b = 4, 1
	alike(t, onBusy, costOf(m, asked, busy), "busy")

	// Waiting requests of other routers count one prompt token each until a size is
	// known, then 40; here one of the waiting is this router's own.
	external, more := busy, onBusy
	external.Waiting, external.Running = 3, 1
	more.ttft += 2
	alike(t, more, costOf(m, asked, external), "others wait")
	m.learned.common.fresh.add(40, 1)
	more.ttft += 78
	alike(t, more, costOf(m, asked, external), "others of 40 tokens wait")
	// Where no request is this router's own, all are of the usual size.
	m.learned.common.size.add(3000, 1)
	theirs := onBusy
	theirs.ttft, theirs.tpot = 300+2000+attention+200/2+1.5*4*(0.5+3), 200+5*0.5+4*3+3.15
	alike(t, theirs, costOf(m, asked, endpick.Candidate{PrefixTokens: 1000, Running: 4}), "others run")

	// The first token of a response that does not stream has no extra weight.
	whole := asked
	whole.Stream = false
	onBusy.w = 1
	alike(t, onBusy, costOf(m, whole, busy), "whole")

	// A prompt that is fully cached computes its last token only.
	held := idle
	held.PrefixTokens = 3000
	m = newMarginal(Config{})
	alike(t, cost{w: 5, ttft: 300 + 1 + 3000.5/30_000, n: 300, tpot: 200 + s, s: s, fk: 1 + 3000.5/30_000, c: 1, again: 1}, costOf(m, asked, held), "held")
}

// What is multiplied with all that: pace, crowding, arrivals, the price of computing again.
func TestFactorsByHand(t *testing.T) {
	m := newMarginal(Config{})
	plain := costOf(m, asked, busy)
	l := &m.learned
	now := nanoseconds(start)
	for range 40 {
		l.common.arrivals.add(now) // in ten seconds, on two servers
	}
	coming := 40 / 10_000. / 2 * plain.fk / 2
	assert.InEpsilon(t, coming, costOf(m, asked, busy).coming, 1e-9, "however long they wait, while nobody knows how long a response takes")
	l.again.add(3, 1)
	l.idle.add(1000, 1)
	l.whole.add(4000, 1)
	l.first.add(100, 1)
	l.common.decoding.add(3100, 1) // 32 times in all: 2⁵
	want := plain
	want.c, want.w, want.again, want.coming = 2, 1+8, 3*2000, coming
	alike(t, want, costOf(m, asked, busy), "learned")

	// A server that is slower than its kind is so in everything.
	e := m.endpoints.At(endpick.EndpointRef{Slot: 1, Generation: 1})
	for range 100 {
		e.pace.Add(now, 2, 0.1)
	}
	pace := e.pace.Factor(now)
	require.Greater(t, pace, 1.8)
	slow := want
	slow.ttft, slow.tpot, slow.s, slow.fk, slow.coming = want.ttft*pace, want.tpot*pace, want.s*pace, want.fk*pace, want.coming*pace
	alike(t, slow, costOf(m, asked, busy), "slow")

	// The host's own weight is not measured.
	m.config.FirstTokenWeight = 1.5
	assert.Equal(t, 1.5, m.weight(&asked))
	assert.Equal(t, 1.0, m.weight(&endpick.Request{}))
	half := newMarginal(Config{})
	half.learned.first.add(100, 1)
	assert.Equal(t, 5.0, half.weight(&asked), "no response has ended yet")
	half.learned.common.decoding.add(0, 1)
	assert.Equal(t, 2.0, half.weight(&asked), "at least")
	for whole, c := range map[float64]float64{1000: 1, 9000: 3, 1e9: math.Sqrt(10)} {
		l := &newMarginal(Config{}).learned
		l.idle.add(1000, 1)
		l.whole.add(whole, 1)
		assert.InDelta(t, c, l.crowding(), 1e-9)
	}
}

// B is the square of the mean of roots: one server with a hundred among nine idle ones is a
// batch of one, not of ten.
func TestTypicalBatchByHand(t *testing.T) {
	for want, loads := range map[float64][]float64{0: {0, 0}, 0.64: {64, 0, 0, 0, 0}, 25: {4, 1 << 30}, 6.25: {4, 9}, 156.25: {25, 1 << 30, 36, 169}, 1 << 30: {math.Inf(1)}} {
		m := newMarginal(Config{})
		req := asked.At(start, 1, 1)
		var cs []endpick.Candidate
		for _, v := range loads {
			cs = append(cs, endpick.Candidate{Endpoint: &endpick.Endpoint{Variant: "v"}, Running: v})
		}
		d := m.decide(&req, cs)
		d.survey()
		assert.InDelta(t, want, d.b, 1e-6*want)
		d.end()
	}
}

// λ is of a kind, and each of its servers has its part.
func TestArrivalsAreSharedByServers(t *testing.T) {
	m := newMarginal(Config{})
	m.learned.kinds.admit(kindName{"m", "v"}, &m.learned.common)
	k := m.learned.kinds.known[kindName{"m", "v"}]
	for range 30 {
		k.arrivals.add(nanoseconds(start))
	}
	req := asked.At(start.Add(10*time.Second), 1, 1)
	cs := []endpick.Candidate{{Endpoint: &endpick.Endpoint{Variant: "v"}}, {Endpoint: &endpick.Endpoint{Variant: "other"}}, {Endpoint: &endpick.Endpoint{Variant: "v"}}, {Endpoint: &endpick.Endpoint{Variant: "v"}}}
	d := m.decide(&req, cs)
	defer d.end()
	d.survey()
	for i, want := range []float64{10 / math.E / 10_000, 0, 10 / math.E / 10_000} {
		d.at(&cs[i])
		assert.InDelta(t, want, d.rate, 1e-12)
	}
}

// Which share of 2,300 tokens does not fit, e, by hand.
func TestWhatDoesNotFitByHand(t *testing.T) {
	for _, x := range []struct {
		name         string
		size         int
		filled, want float64
	}{
		{"nothing is known", 0, 0, 1}, {"all is free", 10_000, 0, 0}, {"just enough", 10_000, 7700, 0}, {"half of it", 10_000, 8850, 0.5},
		{"full", 10_000, 10_000, 1}, {"more came than fits", 10_000, 1e6, 1},
	} {
		m := newMarginal(Config{})
		m.endpoints.At(endpick.EndpointRef{Slot: 1, Generation: 1}).filled = x.filled
		c := busy
		c.Endpoint = &endpick.Endpoint{KVTokens: x.size, Variant: "v"} // alone
		assert.InDelta(t, 2000*x.want, costOf(m, asked, c).again, 1e-2, x.name)
		c.Endpoint = &endpick.Endpoint{KVTokens: x.size} // beside one of which nothing is known
		assert.InDelta(t, 2000*(1+x.want)/2, costOf(m, asked, c).again, 1e-2, x.name)
	}
	c := idle
	c.Endpoint = &endpick.Endpoint{KVTokens: 1150, Variant: "v"}
	assert.InDelta(t, 2000*0.5, costOf(newMarginal(Config{}), asked, c).again, 1e-2, "nothing was routed there yet")
}

// The naive twin works out the formula from the page, with nothing but the candidates.
func TestCostTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMarginal(Config{})
		l := &m.learned
		now := nanoseconds(start)
		positive := func(name string, most float64) float64 { return rapid.Float64Range(0.01, most).Draw(t, name) }
		for i := range l.common.each[:blocked] {
			l.common.each[i] = proportions[i] * positive("each", 3)
		}
		first, rest, whole, again := positive("first", 1e4), positive("rest", 1e5), positive("whole", 20), positive("again", 2)
		l.first.add(first, 1)
		l.common.decoding.add(rest, 1)
		idle := positive("idle", 1000)
		l.idle.add(idle, 1)
		l.whole.add(max(whole, 1)*idle, 1)
		l.again.add(again, 1)
		l.common.labels = 1
		arrivals := rapid.IntRange(0, 50).Draw(t, "arrivals")
		for range arrivals {
			l.common.arrivals.add(now)
		}
		req := endpick.Request{Model: "m", InputTokens: 16 * rapid.IntRange(1, 100).Draw(t, "blocks"), Stream: true}
		var cs []endpick.Candidate
		var prefixes []int
		roots, most, next, e, waiting := 0.0, 0.0, 0.0, 0.0, 0.0
		l.common.size.add(positive("size", 1000), 1)
		for i := range rapid.IntRange(1, 5).Draw(t, "candidates") {
			c := endpick.Candidate{Endpoint: &endpick.Endpoint{KVTokens: rapid.IntRange(0, 5000).Draw(t, "size")}, Ref: endpick.EndpointRef{Slot: uint32(i), Generation: 1}}
			c.Running, c.Waiting = float64(rapid.IntRange(0, 50).Draw(t, "running")), float64(rapid.IntRange(0, 50).Draw(t, "waiting"))
			c.InFlight.Requests, c.KVUsage, c.Reported = rapid.IntRange(0, 50).Draw(t, "own"), rapid.Float64Range(0, 1).Draw(t, "usage"), endpick.KVUsageSignal
			c.PrefixTokens = min(16*rapid.IntRange(0, 4).Draw(t, "held"), req.InputTokens-1)
			c.Prediction = endpick.Prediction{Has: endpick.TTFT | endpick.TPOT, TTFT: time.Second, TPOT: time.Millisecond}
			m.endpoints.At(c.Ref).filled = positive("filled", 5000)
			root := math.Sqrt(c.BatchSize())
			roots, most, next = roots+root, max(most, root), max(next, min(most, root))
			if memory := float64(c.Endpoint.KVTokens); memory > 0 && 1-c.KVUsage < math.Sqrt(l.common.size.or(0)/memory) {
				waiting += min(c.Waiting, float64(c.InFlight.Requests))
			}
			cs, prefixes = append(cs, c), append(prefixes, c.PrefixTokens)
			free := max(float64(c.Endpoint.KVTokens)-m.endpoints.Find(c.Ref).filled, 0)
			e += 1 - min(free/float64(req.InputTokens-c.PrefixTokens+300), 1)
		}
		e /= float64(len(cs))
		slices.Sort(prefixes)
		if len(cs) > 1 {
			roots += min(most, max(2*next, 8/math.Sqrt(float64(len(cs)-1)))) - most
		}
		c, w, b := math.Sqrt(min(max(whole, 1), 10)), 1+math.Pow((first+rest)/first, 0.6), math.Pow(roots/float64(len(cs)), 2)
		at := req.At(start, 1, 1)
		var least cost
		scores, why, sums := make([]float64, len(cs)), make([]string, len(cs)), []float64(nil)
		m.Score(&at, cs, scores)
		m.Explain(&at, cs, why)
		d := m.decide(&at, cs)
		defer d.end()
		d.survey()
		for i := range cs {
			prefill := func(held int) (f, whole float64) {
				f = float64(req.InputTokens - held)
				return f, l.common.each[tokens]*f + l.common.each[attention]*f*(float64(held)+f/2)
			}
			held := cs[i].PrefixTokens
			if others := len(cs) - 1; others > 0 && cs[i].BatchSize() == 0 {
				all := -min(held, prefixes[others-1])
				for _, p := range prefixes {
					all += min(p, prefixes[others-1])
				}
				held = max(held, all/others)
			}
			_, takesAll := prefill(cs[i].PrefixTokens)
			f, k := prefill(held)
			first := max(1000-(takesAll-k), 0)
			k /= f
			s := l.common.each[batches] + l.common.each[contexts]*(float64(req.InputTokens)+150)
			lambda := float64(arrivals) / 10_000 / float64(len(cs))
			bs, takes := cs[i].BatchSize(), 0.0
			if memory := float64(cs[i].Endpoint.KVTokens); memory > 0 {
				takes = min((f+300)/memory, 1)
			}
			want := w*first + 300*1 + 300*s*bs + f*(k*c*(bs+lambda*min(k*f/2, max(whole, 1)*idle))+e*again*(c*b+w)) + 300*1*w*waiting/float64(len(cs))*takes
			var x cost
			d.cost(&cs[i], &x)
			require.InEpsilon(t, want, x.sum(), 1e-3)
			if sums = append(sums, x.sum()); i == 0 || x.sum() < least.sum() {
				least = x
			}
		}
		for i, sum := range sums {
			var x cost
			d.cost(&cs[i], &x)
			require.Equal(t, x.text(d.unit(), nil, &least), why[i])
			require.InEpsilon(t, slices.Min(sums)/sum, scores[i], 1e-9)
		}
	})
}

// Memory, or places, that are missing become free over the response's time: that share
// of it that falls into the ten seconds.
func TestRoomByHand(t *testing.T) {
	for _, x := range []struct {
		name     string
		endpoint endpick.Endpoint
		usage    float64
		absent   bool
		missing  float64
	}{
		{"nothing is known", endpick.Endpoint{}, 0.9, false, 0},
		{"0.9 is used and 2,500 of 10,000 are needed", endpick.Endpoint{KVTokens: 10_000}, 0.9, false, 0.15},
		{"there is room", endpick.Endpoint{KVTokens: 10_000}, 0.7, false, 0},
		{"use is not reported", endpick.Endpoint{KVTokens: 10_000}, 0.9, true, 0},
		{"five in four places", endpick.Endpoint{MaxSequences: 4}, 0, false, 0.25},
		{"five in five places", endpick.Endpoint{MaxSequences: 5}, 0, false, 0},
		{"the larger counts", endpick.Endpoint{MaxSequences: 4, KVTokens: 10_000}, 0.9, false, 0.25},
		{"the larger counts, which is memory", endpick.Endpoint{MaxSequences: 4, KVTokens: 10_000}, 1, false, 0.25},
		{"and if there is no place, memory may do", endpick.Endpoint{MaxSequences: 5, KVTokens: 10_000}, 0.95, false, 0.2},
	} {
		m := newMarginal(Config{})
		m.learned.common.decoding.add(10_000, 1)
		c := busy
		unknown := costOf(m, asked, c)
		c.Endpoint, c.KVUsage = &x.endpoint, x.usage
		if !x.absent {
			c.Reported = endpick.KVUsageSignal
		}
		assert.InDelta(t, 10_000*x.missing, costOf(m, asked, c).ttft-unknown.ttft, 1e-6, x.name)
	}
}

// Predictions count where they are valid.
func TestCostsOfPredictions(t *testing.T) {
	const all = endpick.TTFT | endpick.TPOT | endpick.E2E
	m := newMarginal(Config{})
	own := costOf(m, asked, busy)
	for _, x := range []struct {
		name         string
		stream       bool
		p            endpick.Prediction
		ttft, decode float64
	}{
		{"a stream", true, endpick.Prediction{Has: all, TTFT: time.Second, TPOT: 10 * time.Millisecond, E2E: time.Hour}, 1000, 3000},
		{"a stream's first token", true, endpick.Prediction{Has: endpick.TTFT, TTFT: time.Second}, 1000, own.n * own.tpot},
		{"a stream's others", true, endpick.Prediction{Has: endpick.TPOT, TPOT: 10 * time.Millisecond}, own.ttft, 3000},
		{"a whole stream", true, endpick.Prediction{Has: endpick.E2E, E2E: time.Hour}, own.ttft, own.n * own.tpot},
		{"no stream", false, endpick.Prediction{Has: all, TTFT: time.Second, TPOT: 10 * time.Millisecond, E2E: time.Minute}, 1000, 59_000},
		{"no stream, at once", false, endpick.Prediction{Has: all, TTFT: time.Minute, E2E: time.Second}, 1000, 0},
		{"no stream, in parts", false, endpick.Prediction{Has: endpick.TTFT | endpick.TPOT, TTFT: time.Second, TPOT: time.Second}, 1000, own.n * own.tpot},
		{"below zero", true, endpick.Prediction{Has: all, TTFT: time.Second, TPOT: -1, E2E: time.Hour}, own.ttft, own.n * own.tpot},
		{"also below zero", true, endpick.Prediction{Has: all, TTFT: -1, TPOT: time.Second, E2E: time.Hour}, own.ttft, own.n * own.tpot},
	} {
		req, c := asked, busy
		req.Stream, c.Prediction = x.stream, x.p
		got := costOf(m, req, c)
		assert.InDelta(t, x.ttft, got.ttft, 1e-6, x.name)
		assert.InDelta(t, x.decode, got.n*got.tpot, 1e-6, x.name)
		got.w, got.ttft, got.tpot = own.w, own.ttft, own.tpot
		assert.Equal(t, own, got, x.name)
	}
}

// The lowest cost scores 1, twice that cost 0.5, NaN 0.
func TestScoresOfCosts(t *testing.T) {
	m := newMarginal(Config{})
	cs := append(matched(0, 0, 0, 0), endpick.Candidate{Endpoint: &endpick.Endpoint{ID: "e", Variant: "other"}, Ref: endpick.EndpointRef{Slot: 4, Generation: 1}, Waiting: math.Inf(1)})
	cs[2].Waiting = math.NaN()
	const has = endpick.TTFT | endpick.TPOT
	whole := asked
	whole.InputTokens = 0 // 1 token to compute, with a price of 1 · w
	at := whole.At(start, 1, 1)
	price := 5.0
	predict := func(i int, total float64) {
		cs[i].Prediction = endpick.Prediction{Has: has, TTFT: time.Duration((total - price) / 5 * 1e6)}
	}
	predict(0, 4000)
	predict(1, 2000)
	dst := make([]float64, 2)
	m.Score(&at, cs[:2], dst)
	assert.InDeltaSlice(t, []float64{0.5, 1}, dst, 1e-9)
	m.learned.again.add(0, 1)
	price = 0
	predict(0, 0)
	m.Score(&at, cs[:2], dst)
	assert.Equal(t, []float64{1, 0}, dst, "what costs nothing is best")
	dst = make([]float64, 5)
	m.Score(&at, cs, dst)
	assert.Zero(t, dst[4])
	for i, v := range dst {
		assert.True(t, v >= 0 && v <= 1, "%d: %v", i, v)
	}
}
