package delay

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// costOf is the cost of a request on the second of two candidates, the first of which is
// idle.
func costOf(t *testing.T, m *marginal, req endpick.Request, c endpick.Candidate) cost {
	t.Helper()
	cs := []endpick.Candidate{{Endpoint: &endpick.Endpoint{ID: "idle"}, Ref: endpick.EndpointRef{Slot: 0, Generation: 1}}, c}
	if c.Endpoint == nil {
		cs[1].Endpoint = &endpick.Endpoint{ID: "b"}
	}
	cs[1].Ref = endpick.EndpointRef{Slot: 1, Generation: 1}
	req = req.At(time.Unix(1e9, 0), 1, 1)
	d := m.decide(&req, cs)
	defer d.end()
	var out cost
	d.of(&cs[1], &out)
	return out
}

func fresh(t *testing.T, without terms) *marginal {
	m := newMarginal(t, Config{})
	m.without = without
	return m
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

// Before the first label, costs are in prompt tokens: 1 a token, 1/30,000 a pair, 100 a
// request, 200 a step, 0.5 a request in a step and 1/1,000 a token in memory.
func TestCostsByHand(t *testing.T) {
	const pairs = 2000 * (1000 + 2000/2) / 30_000.
	m := fresh(t, horizon)
	check := func(want cost, req endpick.Request, c endpick.Candidate) {
		t.Helper()
		got := costOf(t, m, req, c)
		assert.InDelta(t, want.TTFT, got.TTFT, 1e-6, "TTFT")
		assert.InDelta(t, want.Decode, got.Decode, 1e-6, "decode")
		assert.InDelta(t, want.Weight, got.Weight, 1e-6, "weight")
		assert.InDelta(t, want.Prefill, got.Prefill, 1e-6, "prefill")
		assert.InDelta(t, want.Slowdown, got.Slowdown, 1e-6, "slowdown")
		assert.InDelta(t, want.Weight*want.TTFT+want.Decode+want.Prefill+want.Slowdown, got.sum(), 1e-6)
	}
	check(cost{TTFT: 100 + 2000 + pairs + 300, Weight: 4, Decode: 300 * (200 + 0.5 + 3.15)}, asked, idle)
	onBusy := cost{
		TTFT: 100 + 2500 + pairs + 300 + 1.5*4*(0.5+2.05), Weight: 4, Decode: 300 * (200 + 5*0.5 + 4*2.05 + 3.15),
		Prefill: (2000 + pairs) * 4, Slowdown: 150 * (0.5 + 3.15) * 4,
	}
	check(onBusy, asked, busy)

	// Waiting requests of other routers count one prompt token each until a size is
	// known, then 40; here one of the waiting is this router's own.
	external, more := busy, onBusy
	external.Waiting, external.Running = 3, 1
	more.TTFT += 2
	check(more, asked, external)
	m.common.fresh.add(40)
	more.TTFT += 78
	check(more, asked, external)
	// Where no request is this router's own, all are of the usual size.
	m.common.size.add(3000)
	others := endpick.Candidate{PrefixTokens: 1000, Running: 4}
	theirs := onBusy
	theirs.TTFT, theirs.Decode = 100+2000+pairs+300+1.5*4*(0.5+3), 300*(200+5*0.5+4*3+3.15)
	check(theirs, asked, others)

	// A response that does not stream has one latency; its first token has no extra weight.
	whole := asked
	whole.Stream = false
	onBusy.Weight = 1
	check(onBusy, whole, busy)

	// What was evicted has to be computed again, 500 tokens. That counts for the request
	// itself: elsewhere it would delay others as much.
	evicted, longer := busy, onBusy
	evicted.EvictedTokens = 500
	longer.TTFT += 500 + 2500*(500+2500/2)/30_000. - pairs
	check(longer, whole, evicted)

	// A prompt that is fully cached computes its last token only.
	m = fresh(t, horizon)
	held := idle
	held.PrefixTokens = 3000
	check(cost{TTFT: 100 + 1 + 3000.5/30_000 + 300, Weight: 4, Decode: 300 * (200 + 0.5 + 3.15)}, asked, held)
}

// Which part of a difference in load lasts, and the pace of a server, by hand.
func TestHorizonAndPaceByHand(t *testing.T) {
	full := costOf(t, fresh(t, horizon), asked, busy)

	// How much of a difference lasts: over a time t a share of (1 − e^−t′)/t′ remains
	// on average; here half remains after half the time. The mean of both candidates is
	// 2.
	lasting := (1 - 0.25) / math.Log(4)
	each := 0.5 + 2.05
	got := costOf(t, fresh(t, 0), asked, busy)
	assert.InDelta(t, full.Decode-300*(4-2-2*lasting)*each, got.Decode, 1e-6)
	assert.InDelta(t, full.Slowdown*(2+2*lasting)/4, got.Slowdown, 1e-6)
	assert.Equal(t, full.Prefill, got.Prefill)

	// Ten other requests are on servers of unknown pace; this server is twice as slow.
	m := fresh(t, horizon)
	e := m.endpoints.At(endpick.EndpointRef{Slot: 1, Generation: 1})
	at := nanoseconds(time.Unix(1e9, 0))
	for range 100 {
		e.pace.Add(at, 2, 0.1)
	}
	pace := e.pace.Factor(at)
	require.Greater(t, pace, 1.8)
	got = costOf(t, m, asked, busy)
	assert.InDelta(t, full.TTFT*pace, got.TTFT, 1e-6)
	assert.InDelta(t, full.Decode*pace, got.Decode, 1e-6)
	assert.InDelta(t, full.Prefill*pace, got.Prefill, 1e-6)
	assert.InDelta(t, full.Slowdown*pace, got.Slowdown, 1e-6)
	m.without |= ownPace
	assert.Equal(t, full, costOf(t, m, asked, busy))
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
		m, without := fresh(t, horizon), fresh(t, horizon|room)
		m.common.decoding.add(10_000)
		without.common.decoding.add(10_000)
		c := busy
		c.Endpoint, c.KVUsage = &x.endpoint, x.usage
		if !x.absent {
			c.Reported = endpick.KVUsageSignal
		}
		assert.InDelta(t, 10_000*x.missing, costOf(t, m, asked, c).TTFT-costOf(t, without, asked, c).TTFT, 1e-6, x.name)
	}
}

// Predictions count where they are valid.
func TestCostsOfPredictions(t *testing.T) {
	const all = endpick.TTFT | endpick.TPOT | endpick.E2E
	m := fresh(t, 0)
	own := costOf(t, m, asked, busy)
	for _, x := range []struct {
		name         string
		stream       bool
		p            endpick.Prediction
		ttft, decode float64
	}{
		{"a stream", true, endpick.Prediction{Has: all, TTFT: time.Second, TPOT: 10 * time.Millisecond, E2E: time.Hour}, 1000, 3000},
		{"a stream's first token", true, endpick.Prediction{Has: endpick.TTFT, TTFT: time.Second}, 1000, own.Decode},
		{"a stream's others", true, endpick.Prediction{Has: endpick.TPOT, TPOT: 10 * time.Millisecond}, own.TTFT, 3000},
		{"a whole stream", true, endpick.Prediction{Has: endpick.E2E, E2E: time.Hour}, own.TTFT, own.Decode},
		{"no stream", false, endpick.Prediction{Has: all, TTFT: time.Second, TPOT: 10 * time.Millisecond, E2E: time.Minute}, 0, 60_000},
		{"no stream, in parts", false, endpick.Prediction{Has: endpick.TTFT | endpick.TPOT, TTFT: time.Second, TPOT: time.Second}, 1000, own.Decode},
		{"below zero", true, endpick.Prediction{Has: all, TTFT: time.Second, TPOT: -1, E2E: time.Hour}, own.TTFT, own.Decode},
		{"also below zero", true, endpick.Prediction{Has: all, TTFT: -1, TPOT: time.Second, E2E: time.Hour}, own.TTFT, own.Decode},
	} {
		req, c := asked, busy
		req.Stream, c.Prediction = x.stream, x.p
		got := costOf(t, m, req, c)
		assert.InDelta(t, x.ttft, got.TTFT, 1e-6, x.name)
		assert.InDelta(t, x.decode, got.Decode, 1e-6, x.name)
		assert.Equal(t, own.Slowdown, got.Slowdown, x.name)
		assert.Equal(t, own.Prefill, got.Prefill, x.name)
	}
}

// The weights of the first token, of a place in a cache, and of a delay that comes back.
func TestFactorsByHand(t *testing.T) {
	weight := func(first, rest float64) float64 {
		m := fresh(t, 0)
		m.first.add(first)
		m.common.decoding.add(rest)
		return m.weight(&asked)
	}
	assert.Equal(t, 2.0, weight(100, 300))
	assert.Equal(t, 1.0, weight(100, 0))
	assert.Equal(t, 1.0, weight(0, 50))
	m := fresh(t, 0)
	assert.Equal(t, 4.0, m.weight(&asked), "nothing is known")
	m.first.add(100)
	assert.Equal(t, 4.0, m.weight(&asked), "no response has ended yet")

	eviction := func(prompt, anew float64) float64 {
		m := fresh(t, 0)
		m.common.each[tokens] = 3
		m.prompt.add(prompt)
		m.anew.add(anew)
		return m.eviction()
	}
	assert.InDelta(t, 3*1.5, eviction(1000, 400), 1e-9)
	assert.Equal(t, 0.0, eviction(1000, 1000))
	assert.Equal(t, 0.0, eviction(1000, 2000))
	assert.Equal(t, 6.0, eviction(1000, 100), "no more than two computations")
	assert.Equal(t, 0.0, fresh(t, 0).eviction())
	// 500 tokens computed at 3 each and 1,500 at 5, on whatever endpoint.
	m = fresh(t, 0)
	m.computed.fade(500, math.Inf(1))
	m.computed.fade(1500, math.Inf(1))
	m.computing.fade(1500, math.Inf(1))
	m.computing.fade(7500, math.Inf(1))
	m.prompt.add(1000)
	m.anew.add(400)
	assert.InDelta(t, 4.5*1.5, m.eviction(), 1e-9)

	feedback := func(whole float64) float64 {
		m := fresh(t, 0)
		m.whole.add(whole)
		m.idle.add(20_650)
		return m.feedback()
	}
	assert.InDelta(t, 2, feedback(4*20_650), 1e-9)
	assert.InDelta(t, 1, feedback(20_650), 1e-9)
	assert.Equal(t, 1.0, feedback(20_000), "never less than once")
	assert.InDelta(t, math.Sqrt(10), feedback(1e9), 1e-9)
	assert.Equal(t, 1.0, fresh(t, 0).feedback())

	// With all terms, a prefill of 2,000 tokens delays four others by twice its own
	// time, and also the requests that come back for what it evicts, and those beside these.
	m = fresh(t, horizon)
	m.first.add(20_650)
	m.common.decoding.add(3 * 20_650)
	m.whole.add(4 * 20_650)
	m.idle.add(20_650)
	m.prompt.add(1500)
	m.anew.add(1000)
	const took, again = 2000 + 2000*2000/30_000., 2000 * 0.5
	assert.InDelta(t, took*4*2+again*(2*2+2), costOf(t, m, asked, busy).Prefill, 1e-6, "on average there are two")
}

// The lowest cost scores 1, twice that cost 0.5, NaN 0.
func TestScoresOfCosts(t *testing.T) {
	m := fresh(t, 0)
	cs := []endpick.Candidate{
		{Endpoint: &endpick.Endpoint{ID: "a"}, Ref: endpick.EndpointRef{Slot: 0, Generation: 1}},
		{Endpoint: &endpick.Endpoint{ID: "b"}, Ref: endpick.EndpointRef{Slot: 1, Generation: 1}},
		{Endpoint: &endpick.Endpoint{ID: "c"}, Ref: endpick.EndpointRef{Slot: 2, Generation: 1}, Waiting: math.NaN()},
		{Endpoint: &endpick.Endpoint{ID: "d", Variant: "other"}, Ref: endpick.EndpointRef{Slot: 3, Generation: 1}, Waiting: math.Inf(1)},
	}
	const has = endpick.TTFT | endpick.TPOT
	cs[0].Prediction = endpick.Prediction{Has: has, TTFT: 4 * time.Second, TPOT: 20 * time.Millisecond}
	cs[1].Prediction = endpick.Prediction{Has: has, TTFT: 2 * time.Second, TPOT: 10 * time.Millisecond}
	req := asked.At(time.Unix(1e9, 0), 1, 1)
	dst := make([]float64, 2)
	m.Score(&req, cs[:2], dst)
	assert.InDeltaSlice(t, []float64{0.5, 1}, dst, 1e-9)
	cs[0].Prediction = endpick.Prediction{Has: has}
	m.Score(&req, cs[:2], dst)
	assert.Equal(t, []float64{1, 0}, dst, "what costs nothing is best")
	dst = make([]float64, 4)
	m.Score(&req, cs, dst)
	assert.Zero(t, dst[3])
	for i, v := range dst {
		assert.True(t, v >= 0 && v <= 1, "%d: %v", i, v)
	}
}
