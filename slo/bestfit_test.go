package slo_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo"
)

func TestBestFitScores(t *testing.T) {
	idle := fleet(both(300, 40), both(400, 40), both(100, 40), both(250, 40))
	idle[0].Running, idle[1].Running = 0, 0
	parts := fleet(whole(10), both(2, 1), endpick.Prediction{Has: endpick.TTFT, TTFT: ms})
	for i := range parts {
		parts[i].KVUsage, parts[i].Waiting = 1, 1
	}
	for _, tc := range []struct {
		name   string
		config slo.BestFitConfig
		req    endpick.Request
		cs     []endpick.Candidate
		want   []float64
	}{
		// 100 + 100·10 = 1100, 200 + 100·5 = 700, 50 + 100·13.5 = 1400.
		{"no SLO: the lowest latency", slo.BestFitConfig{}, ask(0, 0), fleet(both(100, 10), both(200, 5), both(50, 13.5)),
			[]float64{700.0 / 1100, 1, 0.5}},
		{"no SLO: whatever the headroom", slo.BestFitConfig{MostHeadroom: true}, ask(0, -1),
			fleet(both(100, 10), both(200, 5), both(50, 13.5)), []float64{700.0 / 1100, 1, 0.5}},
		// Shares 0.5, 0.25, 0 of TTFT.
		{"least", slo.BestFitConfig{}, ask(200, 0), fleet(both(100, 40), both(150, 40), both(200, 40)), []float64{0.8, 0.9, 1}},
		{"most", slo.BestFitConfig{MostHeadroom: true}, ask(200, 0), fleet(both(100, 40), both(150, 40), both(200, 40)),
			[]float64{0.8, 0.7, 0.6}},
		// Deficits 0.5, 1, –, 0.25: idle endpoints come before busy ones.
		{"idle first among those in deficit", slo.BestFitConfig{}, ask(200, 0), idle,
			[]float64{0.3 + 0.2/1.5, 0.4, 0.8, 0.16}},
		{"deficits do not depend on it", slo.BestFitConfig{MostHeadroom: true}, ask(200, 0), idle[:2],
			[]float64{0.3 + 0.2/1.5, 0.4}},
		{"no candidates", slo.BestFitConfig{}, ask(200, 0), nil, []float64{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			assert.InDeltaSlice(t, tc.want, score(newBestFit(t, tc.config), tc.req, tc.cs), 1e-9)
		})
	}
	// Of the three, only the second has the prediction that a streamed response is
	// ranked by, and only the first the one for a whole response.
	streamed := ask(0, 0)
	streamed.ExpectedOutputTokens = 1
	got := score(newBestFit(t, slo.BestFitConfig{}), streamed, parts)
	assert.Equal(t, []float64{0, 1, 0}, got)
	streamed.Stream = false
	got = score(newBestFit(t, slo.BestFitConfig{}), streamed, parts)
	assert.Equal(t, []float64{1, 0, 0}, got)
}

func TestBestFitConsidersNeighbours(t *testing.T) {
	// Own latencies are 100 + 100·10 = 1100, 1100, 1300. At 10,000 tokens a
	// second, 1,000 new tokens delay four others by 0.4 s in all, 500 by 0.2 s;
	// the third is empty: 1500, 1300, 1300.
	cs := fleet(both(100, 10), both(100, 10), both(300, 10))
	for i := range cs {
		cs[i].Waiting, cs[i].Running, cs[i].PrefixTokens = 1, 3, 0
	}
	cs[1].PrefixTokens = 500
	cs[2].Waiting, cs[2].Running = 0, 0
	req := ask(0, 0)
	req.InputTokens = 1000
	got := score(newBestFit(t, slo.BestFitConfig{PrefillRate: 10_000}), req, cs)
	assert.InDeltaSlice(t, []float64{1300.0 / 1500, 1, 1}, got, 1e-9)
	got = score(newBestFit(t, slo.BestFitConfig{}), req, cs)
	assert.InDeltaSlice(t, []float64{1, 1, 1100.0 / 1300}, got, 1e-9)

	for _, rate := range []float64{-1, math.NaN(), math.Inf(1)} {
		_, err := slo.NewBestFit(slo.BestFitConfig{PrefillRate: rate})
		assert.ErrorAs(t, err, new(*endpick.ConfigError))
	}
}

func TestBestFitFallsBackOnLoadAndMatch(t *testing.T) {
	cs := fleet(make([]endpick.Prediction, 3)...)
	cs[0].KVUsage, cs[0].Waiting, cs[0].PrefixTokens = 0.25, 4, 750
	cs[1].KVUsage, cs[1].Waiting = 0.5, 1
	cs[2].KVUsage, cs[2].PrefixTokens = 1, 999
	s := newBestFit(t, slo.BestFitConfig{DisableExploration: true})
	for _, req := range []endpick.Request{ask(200, 50), ask(0, 0)} {
		// (0.75 + 0 + 0.75)/3; (0.5 + 0.75 + 0)/3; (0 + 1 + 1)/3.
		assert.InDeltaSlice(t, []float64{0.5, 1.25 / 3, 2.0 / 3}, score(s, req, cs), 1e-9)
	}

	// Scores of the predicted ones are 1, 0.5, 0.25, 0.2; the others get the median, 0.25.
	cs = fleet(whole(1), whole(4), endpick.Prediction{}, whole(2), whole(5))
	cs[2].KVUsage, cs[2].Waiting, cs[2].Running, cs[2].PrefixTokens = 0, 0, 0, 999
	got := score(s, ask(0, 0), cs)
	assert.InDelta(t, 0.25, got[2], 1e-6)
	assert.Less(t, got[2], 0.25)
	assert.Equal(t, []float64{1, 0.25, 0.5, 0.2}, slices.Delete(got, 2, 3), "the others do not change")

	cs = fleet(whole(1), endpick.Prediction{Has: endpick.E2E, E2E: -1})
	cs[1].KVUsage, cs[1].PrefixTokens = 0, 999
	got = score(s, ask(0, 0), cs)
	assert.Equal(t, 1.0, got[0])
	assert.Less(t, got[1], 1.0, "not even as the only other one")
}

func TestBestFitConfig(t *testing.T) {
	for _, c := range []slo.BestFitConfig{{Exploration: -1}, {Exploration: 1}} {
		_, err := slo.NewBestFit(c)
		require.ErrorAs(t, err, new(*endpick.ConfigError))
	}
	name := func(s endpick.Scorer) string { return s.(interface{ Name() string }).Name() }
	assert.Equal(t, "latency-least", name(newBestFit(t, slo.BestFitConfig{})))
	assert.Equal(t, "latency-most", name(newBestFit(t, slo.BestFitConfig{MostHeadroom: true})))
}

func drawConfig(t *rapid.T) slo.BestFitConfig {
	return slo.BestFitConfig{
		Headroom:     newHeadroom(t, slo.HeadroomConfig{UpperBound: rapid.Bool().Draw(t, "upper bound")}),
		MostHeadroom: rapid.Bool().Draw(t, "most headroom"),
	}
}

// Among candidates that meet their targets, more headroom never ranks lower
// under most, and a tighter fit never under least. A candidate that misses a
// target never ranks before one that does not; a smaller deficit never ranks
// lower among equals.
func TestBestFitOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := drawConfig(t)
		config.DisableExploration = true
		s := newBestFit(t, config)
		cs, req := drawFleet(t, 8), drawRequest(t)
		scores := score(s, req, cs)
		for i := range cs {
			for j := range cs {
				a, b := slo.FitOf(config.Headroom, &req, &cs[i]), slo.FitOf(config.Headroom, &req, &cs[j])
				if a.Asked == 0 || !a.Known || !b.Known || scores[i] >= scores[j] {
					continue
				}
				// i ranks behind j.
				switch {
				case a.Meets() && !b.Meets():
					t.Fatalf("%v meets and ranks behind %v", a, b)
				case a.Meets() && b.Meets() && config.MostHeadroom && a.Combined > b.Combined,
					a.Meets() && b.Meets() && !config.MostHeadroom && a.Combined < b.Combined:
					t.Fatalf("%v ranks behind %v", a, b)
				case a.Meets() || b.Meets():
				case cs[i].BatchSize() == 0 && cs[j].BatchSize() > 0:
					t.Fatalf("idle ranks behind busy: %v, %v", a, b)
				case (cs[i].BatchSize() == 0) == (cs[j].BatchSize() == 0) && a.Deficit < b.Deficit:
					t.Fatalf("deficit %v ranks behind %v", a, b)
				}
			}
		}
	})
}

// Removing a candidate that is worse than the chosen one in every respect changes
// nothing, as it would if headroom were normalised over the candidates.
func TestBestFitChoiceDoesNotDependOnADominatedCandidate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := drawConfig(t)
		s := newBestFit(t, config)
		req := drawRequest(t)
		cs := drawFleet(t, 8)
		for i := range cs { // all predicted, with valid numbers
			cs[i].Prediction.Has = endpick.TTFT | endpick.TPOT | endpick.E2E
			p := &cs[i].Prediction
			p.TTFT, p.TPOT, p.E2E = max(p.TTFT, 0), max(p.TPOT, 0), max(p.E2E, 0)
			p.TTFTUpper, p.TPOTUpper, p.E2EUpper = max(p.TTFT, p.TTFTUpper), max(p.TPOT, p.TPOTUpper), max(p.E2E, p.E2EUpper)
		}
		chosen := pick(s, req, cs)
		best := cs[slices.Index(ids(cs), chosen)]
		worse := best
		worse.Endpoint, worse.ChanceKey, worse.Ref = &endpick.Endpoint{ID: "worse"}, endpick.Salt("worse"), endpick.EndpointRef{Slot: 99, Generation: 1}
		p := &worse.Prediction
		for _, d := range []*time.Duration{&p.TTFT, &p.TPOT, &p.E2E, &p.TTFTUpper, &p.TPOTUpper, &p.E2EUpper} {
			*d += time.Duration(1+rapid.IntRange(0, 1000).Draw(t, "worse")) * ms
		}
		worse.Running += 1
		f := slo.FitOf(config.Headroom, &req, &worse)
		if !config.MostHeadroom && f.Asked != 0 && f.Meets() {
			t.Skip("best fit wants the tighter one: it is not worse")
		}
		with := slices.Insert(slices.Clone(cs), rapid.IntRange(0, len(cs)).Draw(t, "place"), worse)
		if got := pick(s, req, with); got != chosen {
			t.Fatalf("chose %s, and %s when a worse one was there", chosen, got)
		}
	})

	// TTFT shares 0.5 and 0.45, TPOT shares 0.2 and 0.36 make 0.44 and 0.432: the
	// second fits best. The third has the most headroom and the worst fit.
	req := ask(200, 50)
	two := fleet(both(100, 40), both(110, 32))
	three := append(slices.Clone(two), fleet(both(0, 0), both(0, 0), both(10, 31))[2])
	s := newBestFit(t, slo.BestFitConfig{})
	assert.Equal(t, pick(s, req, two), pick(s, req, three))
}

// The median rule, checked against a sorted slice.
func TestBestFitUnpredictedStayBelowTheMedian(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newBestFit(t, slo.BestFitConfig{DisableExploration: true})
		cs := fleet(make([]endpick.Prediction, rapid.IntRange(2, 40).Draw(t, "candidates"))...)
		for i := range cs {
			cs[i].KVUsage = rapid.Float64Range(0, 1).Draw(t, "kv")
			if rapid.Bool().Draw(t, "predicted") {
				cs[i].Prediction = whole(float64(rapid.IntRange(1, 50).Draw(t, "e2e")))
			}
		}
		var with []float64
		scores := score(s, ask(0, 0), cs)
		for i, v := range scores {
			if cs[i].Prediction.Has != 0 {
				with = append(with, v)
			}
		}
		if len(with) == 0 {
			return
		}
		slices.Sort(with)
		median := with[(len(with)-1)/2]
		for i, v := range scores {
			if cs[i].Prediction.Has == 0 && v >= median {
				t.Fatalf("%v, the median is %v", v, median)
			}
		}
	})
}

// queueing predicts a TTFT of 50 ms for each request on the endpoint.
type queueing struct{}

func (queueing) Predict(_ *endpick.Request, candidates []endpick.Candidate) {
	for i := range candidates {
		candidates[i].Prediction = both(50*float64(candidates[i].InFlight.Requests+1), 10)
	}
}

// Loose requests come first, then as many tight ones as there are endpoints.
// Best fit has packed the loose ones, so it has room for them.
func TestBestFitLeavesEndpointsFreeForTightRequests(t *testing.T) {
	placed := func(mostHeadroom bool) (met int) {
		h := newHeadroom(t, slo.HeadroomConfig{})
		config := endpick.Config{Seed: 3, Clock: func() time.Time { return epoch }, Policy: endpick.Policy{
			Predictor: queueing{},
			Filters:   []endpick.Filter{newTier(t, slo.TierConfig{Headroom: h, DisableExploration: true})},
			Scorers:   []endpick.Weighted{{Scorer: newBestFit(t, slo.BestFitConfig{Headroom: h, MostHeadroom: mostHeadroom}), Weight: 1}},
		}}
		for i := range 8 {
			config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: string(rune('a' + i))})
		}
		r, err := endpick.New(config)
		require.NoError(t, err)
		for range 16 {
			_, err := r.Route(ask(500, 0))
			require.NoError(t, err)
		}
		for range 6 {
			tight := ask(60, 0)
			l, err := r.Route(tight)
			require.NoError(t, err)
			c, _ := l.Candidate()
			if f := slo.FitOf(h, &tight, &c); f.Meets() {
				met++
			}
		}
		return met
	}
	// 500 ms have room for ten requests of 50 ms: 16 loose ones fill one endpoint
	// and use a second, which leaves six free. Spread over eight they leave none.
	assert.Equal(t, 6, placed(false))
	assert.Zero(t, placed(true))
}

// With the bound, a target is met with a margin for the spread.
func TestBestFitAgainstTheUpperBound(t *testing.T) {
	tight := both(190, 10)
	tight.TTFTUpper = 400 * ms
	sure := both(150, 10)
	sure.TTFTUpper = 190 * ms
	cs := fleet(tight, sure)
	assert.Equal(t, "server-0", pick(newBestFit(t, slo.BestFitConfig{}), ask(200, 0), cs))
	h := newHeadroom(t, slo.HeadroomConfig{UpperBound: true})
	assert.Equal(t, "server-1", pick(newBestFit(t, slo.BestFitConfig{Headroom: h}), ask(200, 0), cs))
	assert.Equal(t, []string{"server-1"}, ids(filter(newTier(t, slo.TierConfig{Headroom: h, DisableExploration: true}), ask(200, 0), cs)))
}
