package scorer_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/scorer/scorertest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// indicators is a short form of a candidate.
type indicators struct {
	w, r, k    float64 // waiting, running, KV usage
	h, q       int     // matched tokens, prefill tokens in flight
	ctx, out   int     // resident prompt and output tokens
	adapters   []string
	slot       uint32
	generation uint32
}

func candidates(of ...indicators) []endpick.Candidate {
	var cs []endpick.Candidate
	for i, x := range of {
		if x.generation == 0 {
			x.slot, x.generation = uint32(i), 1
		}
		id := fmt.Sprintf("server-%d", x.slot)
		c := endpick.Candidate{
			Endpoint: &endpick.Endpoint{ID: id}, ChanceKey: endpick.Salt(id),
			Ref:     endpick.EndpointRef{Slot: x.slot, Generation: x.generation},
			Waiting: x.w, Running: x.r, KVUsage: x.k, PrefixTokens: x.h,
			InFlight: endpick.InFlight{PrefillTokens: x.q, ContextTokens: x.ctx, OutputTokens: x.out},
		}
		if x.adapters != nil {
			c.Report = &endpick.Load{Adapters: x.adapters}
		}
		cs = append(cs, c)
	}
	return cs
}

// residents are candidates that have one model each.
func residents(of ...any) (cs []endpick.Candidate) {
	for i := 0; i < len(of); i += 2 {
		r := endpick.Resident{Model: of[i].(string), State: of[i+1].(endpick.Residency), Context: 4096}
		cs = append(cs, endpick.Candidate{Endpoint: &endpick.Endpoint{Residents: []endpick.Resident{r}}})
	}
	return cs
}

func score(s endpick.Scorer, req endpick.Request, cs []endpick.Candidate) []float64 {
	req = req.At(time.Unix(0, 0), 1, 1)
	dst := make([]float64, len(cs))
	for i := range dst {
		dst[i] = math.NaN() // every slot has to be written
	}
	s.Score(&req, cs, dst)
	return dst
}

func TestScores(t *testing.T) {
	prompt := endpick.Request{InputTokens: 1000}
	for _, tc := range []struct {
		name   string
		scorer endpick.Scorer
		req    endpick.Request
		cs     []endpick.Candidate
		want   []float64
	}{
		{"queue depth is min-max of W + R", scorer.QueueDepth(), prompt,
			candidates(indicators{w: 1, r: 1}, indicators{w: 4, r: 6}, indicators{r: 4}), []float64{1, 0, 0.75}},
		{"queue depth of equals", scorer.QueueDepth(), prompt, candidates(indicators{w: 3}, indicators{r: 3}), []float64{1, 1}},
		{"KV usage", scorer.KVUsage(), prompt, candidates(indicators{k: 0}, indicators{k: 0.25}, indicators{k: 1}), []float64{1, 0.75, 0}},
		{"prefix affinity", scorer.PrefixAffinity(), prompt,
			candidates(indicators{}, indicators{h: 500}, indicators{h: 999}), []float64{0, 0.5, 1}},
		{"prefix affinity of an empty prompt", scorer.PrefixAffinity(), endpick.Request{},
			candidates(indicators{}, indicators{h: 500}), []float64{0, 0}},
		// (1000 − 900 + 100) × (3 + 1) = 800; (1000 + 0) × (0 + 1) = 1000;
		// (1000 − 999 + 0) × (9 + 1) = 10.
		{"lmetric", scorer.LMetric(), prompt,
			candidates(indicators{h: 900, q: 100, w: 1, r: 2}, indicators{}, indicators{h: 999, r: 9}),
			[]float64{0.5 / 801, 0.5 / 1001, 0.5 / 11}},
		{"lmetric of an unknown length still sees load", scorer.LMetric(), endpick.Request{},
			candidates(indicators{}, indicators{r: 3}), []float64{0.25, 0.1}},
		// (1 + 100) × 1: the last token is computed again, after those that wait.
		{"lmetric of a prompt that is held whole", scorer.LMetric(), prompt,
			candidates(indicators{h: 1000, q: 100}, indicators{h: 1000}), []float64{0.5 / 102, 0.25}},
		{"linear counts those that wait", scorer.Linear(0), prompt, candidates(indicators{}, indicators{w: 1}), []float64{0.3, 0}},
		// 1 − 0.7·(1 − 0.5) − 0.3·(5/10) = 0.5; 1 − 0.7·1 − 0.3·1 = 0; 1 − 0.7 = 0.3.
		{"linear", scorer.Linear(0), prompt, candidates(indicators{h: 500, r: 5}, indicators{r: 10}, indicators{}), []float64{0.5, 0, 0.3}},
		{"linear of idle endpoints", scorer.Linear(0.4), prompt, candidates(indicators{}, indicators{h: 500}), []float64{0.6, 0.8}},
		// ((1000 − 200 + 160) + 480 + 160)/16 = 100; 1000/16 = 62.5.
		{"dynamo", scorer.Dynamo(0), prompt,
			candidates(indicators{h: 200, q: 160, ctx: 480, out: 160}, indicators{}), []float64{0.5 / 101, 0.5 / 63.5}},
		{"dynamo with a weight", scorer.Dynamo(2), endpick.Request{InputTokens: 160, BlockTokens: 32},
			candidates(indicators{ctx: 64}), []float64{0.5 / 13}},
		{"adapter", scorer.AdapterAffinity(), endpick.Request{Adapter: "sql"},
			candidates(indicators{}, indicators{adapters: []string{}}, indicators{adapters: []string{"law", "sql"}}), []float64{0.5, 0, 1}},
		{"a report without adapters", scorer.AdapterAffinity(), endpick.Request{Adapter: "sql"},
			[]endpick.Candidate{{Endpoint: &endpick.Endpoint{}, Report: &endpick.Load{}}}, []float64{0.5}},
		{"resident", scorer.Resident(), endpick.Request{Model: "m", Adapter: "l"},
			residents("n", endpick.InMemory, "m", endpick.OnDisk, "m", endpick.Loading, "m", endpick.InMemory), []float64{1, 0, 0.5, 1}},
		{"resident with this context", scorer.Resident(), endpick.Request{Model: "m", Context: 4096}, residents("m", endpick.InMemory), []float64{1}},
		{"resident with a shorter context", scorer.Resident(), endpick.Request{Model: "m", Context: 8192}, residents("m", endpick.InMemory), []float64{0}},
		{"resident with a longer context", scorer.Resident(), endpick.Request{Model: "m", Context: 2048}, residents("m", endpick.InMemory), []float64{0}},
		{"resident with an unknown context", scorer.Resident(), endpick.Request{Model: "m", Context: 8192},
			[]endpick.Candidate{{Endpoint: &endpick.Endpoint{Residents: []endpick.Resident{{Model: "m", State: endpick.InMemory}}}}}, []float64{1}},
		{"a resident adapter", scorer.Resident(), endpick.Request{Adapter: "m"}, residents("m", endpick.OnDisk), []float64{0}},
		{"no adapter asked for", scorer.AdapterAffinity(), prompt,
			candidates(indicators{}, indicators{adapters: []string{"law"}}), []float64{0.5, 0.5}},
		{"no session", scorer.SessionAffinity(), prompt, candidates(indicators{}, indicators{}), []float64{0, 0}},
		{"no candidates", scorer.QueueDepth(), prompt, nil, []float64{}},
	} {
		t.Run(tc.name, func(t *testing.T) { assert.InDeltaSlice(t, tc.want, score(tc.scorer, tc.req, tc.cs), 1e-12) })
	}
}

func TestLeastLoadedPrefersFewerTokensAmongEquals(t *testing.T) {
	got := score(scorer.LeastLoaded(), endpick.Request{}, candidates(
		indicators{r: 2, q: 10_000}, indicators{w: 2}, indicators{r: 3}, indicators{r: 1, q: 1 << 30}))
	assert.Greater(t, got[1], got[0])
	assert.Greater(t, got[0], got[2], "tokens never outweigh a request")
	assert.Greater(t, got[3], got[1])
}

func TestCostKeepsOrder(t *testing.T) {
	costs := []float64{-1e6, -1, -1e-9, 0, 1e-9, 1, 2, 1e12, 1e12 + 1, 1e300, math.Inf(1)}
	s := scorer.Cost("index", func(_ *endpick.Request, c *endpick.Candidate) float64 { return costs[c.Ref.Slot] })
	got := score(s, endpick.Request{}, candidates(make([]indicators, len(costs))...))
	for i := 1; i < len(got); i++ {
		assert.Less(t, got[i], got[i-1], "cost %v", costs[i])
	}
	costs[0], costs[1] = math.NaN(), math.Inf(-1)
	got = score(s, endpick.Request{}, candidates(make([]indicators, len(costs))...))
	assert.Equal(t, []float64{0, 0}, got[:2], "what is not a cost is worst")
	assert.Positive(t, slices.Min(got[2:len(got)-1]), "of others, and of them alone")
}

// Every zero parameter has a default, and every scorer its name.
func TestZeroValuesAreReady(t *testing.T) {
	for want, p := range map[string]endpick.Policy{
		"linear": only(scorer.Linear(0)), "dynamo": only(scorer.Dynamo(0)), "lmetric": only(scorer.LMetric()),
		"mine": only(scorer.Cost("mine", func(*endpick.Request, *endpick.Candidate) float64 { return 0 })),
	} {
		p.Filters = []endpick.Filter{scorer.MatchGate(scorer.MatchGateConfig{}), scorer.Hotspot(scorer.HotspotConfig{})}
		var receipt endpick.Receipt
		require.NoError(t, rig.Err(router(p, 2).Route(endpick.Request{Receipt: &receipt})))
		assert.Equal(t, []string{want}, receipt.Scorers)
	}
}

// A scorer without a function is refused at once, and not at each request.
func TestCostNeedsAFunction(t *testing.T) {
	_, err := endpick.New(endpick.Config{Policy: only(scorer.Cost("mine", nil))})
	assert.EqualError(t, err, "endpick: config: scorer.Cost has no function (stage mine)")
}

func TestMatchGate(t *testing.T) {
	held := candidates(indicators{h: 400, r: 9}, indicators{h: 900, r: 1}, indicators{h: 900}, indicators{r: 4})
	for _, tc := range []struct {
		name string
		gate scorer.MatchGateConfig
		cs   []endpick.Candidate
		want []uint32 // slots that are left
	}{
		{"longest match", scorer.MatchGateConfig{}, held, []uint32{1, 2}},
		{"in balance", scorer.MatchGateConfig{Range: 9}, held, []uint32{1, 2}},
		{"out of balance", scorer.MatchGateConfig{Range: 8}, held, []uint32{0, 1, 2, 3}},
		{"ratio not reached", scorer.MatchGateConfig{Range: 4, Ratio: 2}, candidates(indicators{r: 6}, indicators{h: 1, r: 11}), []uint32{1}},
		{"ratio just reached", scorer.MatchGateConfig{Range: 4, Ratio: 2}, candidates(indicators{r: 5}, indicators{h: 1, r: 10}), []uint32{1}},
		{"ratio exceeded", scorer.MatchGateConfig{Range: 4, Ratio: 2}, candidates(indicators{r: 5}, indicators{h: 1, r: 11}), []uint32{0, 1}},
		{"share too small", scorer.MatchGateConfig{Share: 0.9}, held, []uint32{0, 1, 2, 3}},
		{"nobody holds it", scorer.MatchGateConfig{}, candidates(indicators{}, indicators{}), []uint32{0, 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req := endpick.Request{InputTokens: 1000}
			cs := append([]endpick.Candidate(nil), tc.cs...)
			var got []uint32
			for _, c := range scorer.MatchGate(tc.gate).Filter(&req, cs) {
				got = append(got, c.Ref.Slot)
			}
			assert.Equal(t, tc.want, got)
		})
	}
}

func router(p endpick.Policy, endpoints int) *endpick.Router {
	config := endpick.Config{Policy: p, Clock: func() time.Time { return time.Unix(0, 0) }, Seed: 7}
	for i := range endpoints {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: fmt.Sprintf("server-%d", i)})
	}
	return rig.Must(endpick.New(config))
}

func only(s endpick.Scorer) endpick.Policy {
	return endpick.Policy{Scorers: []endpick.Weighted{{Scorer: s, Weight: 1}}}
}

func TestFieldsOutOfRangeAreRefused(t *testing.T) {
	nan := math.NaN()
	for field, policies := range map[string][]endpick.Policy{
		"scorer.Linear":                   {only(scorer.Linear(-0.1)), only(scorer.Linear(1.1)), only(scorer.Linear(nan))},
		"scorer.Dynamo":                   {only(scorer.Dynamo(-1)), only(scorer.Dynamo(nan)), only(scorer.Dynamo(math.Inf(1)))},
		"scorer.MatchGateConfig.Share":    {filter(scorer.MatchGate(scorer.MatchGateConfig{Share: -1})), filter(scorer.MatchGate(scorer.MatchGateConfig{Share: 1})), filter(scorer.MatchGate(scorer.MatchGateConfig{Share: nan}))},
		"scorer.MatchGateConfig.Range":    {filter(scorer.MatchGate(scorer.MatchGateConfig{Range: -1})), filter(scorer.MatchGate(scorer.MatchGateConfig{Range: nan}))},
		"scorer.MatchGateConfig.Ratio":    {filter(scorer.MatchGate(scorer.MatchGateConfig{Ratio: -1})), filter(scorer.MatchGate(scorer.MatchGateConfig{Ratio: nan}))},
		"scorer.HotspotConfig.Window":     {filter(scorer.Hotspot(scorer.HotspotConfig{Window: -1}))},
		"scorer.HotspotConfig.Classes":    {filter(scorer.Hotspot(scorer.HotspotConfig{Classes: -1}))},
		"scorer.HotspotConfig.HeadTokens": {filter(scorer.Hotspot(scorer.HotspotConfig{HeadTokens: -1}))},
	} {
		for _, p := range policies {
			assert.Equal(t, field, rig.Field(endpick.New(endpick.Config{Policy: p})), "%+v", p)
		}
	}
	for _, p := range []endpick.Policy{
		only(scorer.Linear(1)), only(scorer.Dynamo(3)), filter(scorer.MatchGate(scorer.MatchGateConfig{Share: 0.99, Range: 1, Ratio: 1})),
		filter(scorer.Hotspot(scorer.HotspotConfig{Window: 1, Classes: 1, HeadTokens: 1})),
	} {
		assert.NoError(t, rig.Err(endpick.New(endpick.Config{Policy: p})), "%+v", p)
	}
}

func filter(f endpick.Filter) endpick.Policy { return endpick.Policy{Filters: []endpick.Filter{f}} }

func TestRoundRobinRotates(t *testing.T) {
	r := router(only(scorer.RoundRobin()), 4)
	var first []string
	for range 4 {
		first = append(first, rig.Must(r.Route(endpick.Request{})).Endpoint().ID)
	}
	assert.ElementsMatch(t, []string{"server-0", "server-1", "server-2", "server-3"}, first)
	for range 3 {
		for _, want := range first {
			assert.Equal(t, want, rig.Must(r.Route(endpick.Request{})).Endpoint().ID)
		}
	}
	// A new endpoint is next, even in a reused slot.
	require.NoError(t, r.Remove(first[0]))
	require.NoError(t, r.Add(endpick.Endpoint{ID: "new"}))
	assert.Equal(t, "new", rig.Must(r.Route(endpick.Request{})).Endpoint().ID)
}

// held matches a fixed number of tokens on the endpoints of a set.
type held map[string]int

func (h held) Match(_ *endpick.Request, candidates []endpick.Candidate) {
	for i := range candidates {
		candidates[i].PrefixTokens = h[candidates[i].Endpoint.ID]
	}
}

func TestNoHitLRU(t *testing.T) {
	matcher := held{}
	s := scorer.NoHitLRU()
	p := only(s)
	p.Matcher = matcher
	r := router(p, 3)
	route := func(exclude ...string) (string, []float64) {
		var receipt endpick.Receipt
		l := rig.Must(r.Route(endpick.Request{InputTokens: 100, Receipt: &receipt, Exclude: exclude}))
		var scores []float64
		for _, v := range receipt.Verdicts {
			scores = append(scores, v.Score)
		}
		return l.Endpoint().ID, scores
	}
	first, scores := route()
	assert.Equal(t, []float64{1, 1, 1}, scores, "nobody was used")
	second, scores := route()
	assert.Equal(t, []float64{1, 1, 0}, scores, "one was used: rank 2 of 0 to 2")
	third, scores := route()
	assert.Equal(t, []float64{1, 0.5, 0}, scores)
	assert.Len(t, map[string]bool{first: true, second: true, third: true}, 3)

	matcher[first] = 50 // a warm request is not scored and changes nothing
	_, scores = route()
	assert.Equal(t, []float64{0.5, 0.5, 0.5}, scores)
	warm, scores := route(second, third)
	assert.Equal(t, first, warm)
	assert.Equal(t, []float64{0.5}, scores)
	matcher[second] = 50 // a request is warm if any candidate holds a head of it, wherever it goes
	warm, _ = route(second, third)
	assert.Equal(t, first, warm)
	delete(matcher, first)
	warm, scores = route()
	assert.Equal(t, []float64{0.5, 0.5, 0.5}, scores)
	for warm != first { // ties are broken at random
		warm, _ = route()
	}
	delete(matcher, second)
	next, _ := route()
	assert.Equal(t, first, next, "the oldest comes first again")

	assert.Equal(t, []float64{1}, score(s, endpick.Request{}, candidates(indicators{})), "n = 1")
}

func TestSessionAffinityMovesOnlyTheSessionsOfTheEndpointThatWent(t *testing.T) {
	all := candidates(make([]indicators, 8)...)
	chosen := func(session string, cs []endpick.Candidate) uint32 {
		got := score(scorer.SessionAffinity(), endpick.Request{Session: session}, cs)
		at, sum := 0, 0.0
		for i, v := range got {
			if sum += v; v == 1 {
				at = i
			}
		}
		require.Equal(t, 1.0, sum)
		return cs[at].Ref.Slot
	}
	counts := make([]int, 8)
	for i := range 8000 {
		session := fmt.Sprint("session-", i)
		before := chosen(session, all)
		counts[before]++
		after := chosen(session, all[1:])
		if before != 0 {
			assert.Equal(t, before, after)
		}
	}
	for _, n := range counts {
		assert.InDelta(t, 1000, n, 150)
	}
}

var all = []func() endpick.Scorer{
	scorer.QueueDepth, scorer.KVUsage, scorer.LeastLoaded, scorer.PrefixAffinity, scorer.LMetric, scorer.RoundRobin, scorer.NoHitLRU,
	scorer.SessionAffinity, scorer.AdapterAffinity, scorer.Resident,
	func() endpick.Scorer { return scorer.Linear(0) },
	func() endpick.Scorer { return scorer.Dynamo(0) },
	func() endpick.Scorer {
		return scorer.Cost("cost", func(_ *endpick.Request, c *endpick.Candidate) float64 { return c.BatchSize() })
	},
}

func nameOf(s endpick.Scorer) string { return s.(interface{ Name() string }).Name() }

func TestScorersAllocateNothing(t *testing.T) {
	rig.SkipUnderRace(t, "the race detector allocates")
	cs := candidates(make([]indicators, 100)...)
	dst := make([]float64, len(cs))
	req := endpick.Request{InputTokens: 1000, Session: "s"}.At(time.Unix(0, 0), 1, 1)
	for _, newScorer := range all {
		s := newScorer()
		assert.Zero(t, testing.AllocsPerRun(20, func() { s.Score(&req, cs, dst) }), nameOf(s))
	}
}

func TestScorersConform(t *testing.T) {
	for _, newScorer := range all {
		t.Run(nameOf(newScorer()), func(t *testing.T) { scorertest.RunWeighted(t, func(*testing.T) endpick.Scorer { return newScorer() }) })
	}
}

func TestFiltersConform(t *testing.T) {
	for name, newFilter := range map[string]func() endpick.Filter{
		"match gate": func() endpick.Filter { return scorer.MatchGate(scorer.MatchGateConfig{}) },
		"balanced":   func() endpick.Filter { return scorer.MatchGate(scorer.MatchGateConfig{Range: 8}) },
		"balanced by a half": func() endpick.Filter {
			return scorer.MatchGate(scorer.MatchGateConfig{Share: 0.5, Range: 32, Ratio: 1.1})
		},
		"hotspot": func() endpick.Filter { return scorer.Hotspot(scorer.HotspotConfig{}) },
	} {
		t.Run(name, func(t *testing.T) {
			scorertest.RunFilter(t, func(*testing.T) endpick.Filter { return newFilter() }, map[string]string{})
		})
	}
}

func TestObserversConform(t *testing.T) {
	for name, newObserver := range map[string]func() any{
		"round robin": func() any { return scorer.RoundRobin() },
		"no-hit LRU":  func() any { return scorer.NoHitLRU() },
		"hotspot":     func() any { return scorer.Hotspot(scorer.HotspotConfig{}) },
	} {
		t.Run(name, func(t *testing.T) { scorertest.RunObserver(t, func(*testing.T) any { return newObserver() }) })
	}
}
