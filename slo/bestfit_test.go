package slo_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/slo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBestFitScores(t *testing.T) {
	idle := fleet(both(300, 40), both(400, 40), both(100, 40), both(250, 40))
	idle[0].Running, idle[1].Running, idle[3].Running, idle[3].Waiting = 0, 0, 0, 1
	parts := fleet(whole(0), both(2, 1), endpick.Prediction{Has: endpick.TTFT, TTFT: ms})
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
		{"idle first among those in deficit", slo.BestFitConfig{}, ask(200, 0), idle, []float64{0.3 + 0.2/1.5, 0.4, 0.8, 0.16}},
		{"deficits do not depend on it", slo.BestFitConfig{MostHeadroom: true}, ask(200, 0), idle[:2], []float64{0.3 + 0.2/1.5, 0.4}},
		{"no candidates", slo.BestFitConfig{}, ask(200, 0), nil, []float64{}},
	} {
		assert.InDeltaSlice(t, tc.want, score(rig.Must(slo.NewBestFit(tc.config)), tc.req, tc.cs), 1e-9, tc.name)
	}
	// Of the three, only the second has the prediction that a streamed response is
	// ranked by, and only the first the one for a whole response.
	streamed := ask(0, 0)
	streamed.ExpectedOutputTokens = 1
	assert.Equal(t, []float64{0, 1, 0}, score(rig.Must(slo.NewBestFit(slo.BestFitConfig{})), streamed, parts))
	streamed.Stream = false
	assert.Equal(t, []float64{1, 0, 0}, score(rig.Must(slo.NewBestFit(slo.BestFitConfig{})), streamed, parts))
	assert.Equal(t, []float64{1, 0}, score(rig.Must(slo.NewBestFit(slo.BestFitConfig{})), streamed, parts[1:]), "or the sum of its parts")
	// If nothing but the time to first token is predicted, candidates are compared by that.
	first := fleet(endpick.Prediction{Has: endpick.TTFT, TTFT: 100 * ms}, endpick.Prediction{Has: endpick.TTFT, TTFT: 200 * ms})
	for _, streamed.Stream = range []bool{true, false} {
		assert.Equal(t, []float64{1, 0.5}, score(rig.Must(slo.NewBestFit(slo.BestFitConfig{})), streamed, first), "stream %v", streamed.Stream)
	}
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
	got := score(rig.Must(slo.NewBestFit(slo.BestFitConfig{PrefillRate: 10_000})), req, cs)
	assert.InDeltaSlice(t, []float64{1300.0 / 1500, 1, 1}, got, 1e-9)
	got = score(rig.Must(slo.NewBestFit(slo.BestFitConfig{})), req, cs)
	assert.InDeltaSlice(t, []float64{1, 1, 1100.0 / 1300}, got, 1e-9)
}

func TestBestFitFallsBackOnLoadAndMatch(t *testing.T) {
	cs := fleet(make([]endpick.Prediction, 3)...)
	cs[0].KVUsage, cs[0].Waiting, cs[0].PrefixTokens = 0.25, 4, 750
	cs[1].KVUsage, cs[1].Waiting = 0.5, 1
	cs[2].KVUsage, cs[2].PrefixTokens = 1, 999
	s := rig.Must(slo.NewBestFit(slo.BestFitConfig{DisableExploration: true}))
	for _, req := range []endpick.Request{ask(200, 50), ask(0, 0)} {
		// (0.75 + 0 + 0.75)/3; (0.5 + 0.75 + 0)/3; (0 + 1 + 1)/3.
		assert.InDeltaSlice(t, []float64{0.5, 1.25 / 3, 2.0 / 3}, score(s, req, cs), 1e-9)
	}

	// Scores of the predicted ones are 1, 0.5, 0.25, 0.2; the others get the median, 0.25.
	cs = fleet(whole(1), whole(2), endpick.Prediction{}, whole(4), whole(5), endpick.Prediction{})
	cs[2].KVUsage, cs[2].Waiting, cs[2].Running, cs[2].PrefixTokens = 0, 0, 0, 999
	got := score(s, ask(0, 0), cs)
	assert.InDelta(t, 0.25, got[2], 1e-6)
	assert.Less(t, got[2], 0.25)
	assert.Equal(t, []float64{1, 0.5, 0.25, 0.2}, slices.Delete(got[:5], 2, 3), "the others do not change")

	cs = fleet(whole(1), endpick.Prediction{Has: endpick.E2E, E2E: -1})
	cs[1].KVUsage, cs[1].PrefixTokens = 0, 999
	got = score(s, ask(0, 0), cs)
	assert.Equal(t, 1.0, got[0])
	assert.Less(t, got[1], 1.0, "not even as the only other one")
}

func TestConfig(t *testing.T) {
	for _, c := range []slo.BestFitConfig{{Exploration: -1}, {Exploration: 1}, {PrefillRate: -1}, {PrefillRate: nan}, {PrefillRate: math.Inf(1)}} {
		assert.ErrorAs(t, rig.Err(slo.NewBestFit(c)), new(*endpick.ConfigError))
	}
	for _, c := range []slo.HeadroomConfig{{TTFTWeight: -0.1}, {TTFTWeight: 1}, {TTFTWeight: nan}, {OutputTokens: -1}} {
		assert.ErrorAs(t, rig.Err(slo.NewHeadroom(c)), new(*endpick.ConfigError))
	}
	for _, e := range []float64{-0.1, 1, nan} {
		assert.ErrorAs(t, rig.Err(slo.NewTier(slo.TierConfig{Exploration: e})), new(*endpick.ConfigError))
	}
	assert.ErrorAs(t, rig.Err(slo.NewWarmup(slo.WarmupConfig{Ramp: -1})), new(*endpick.ConfigError))
	name := func(s endpick.Scorer) string { return s.(interface{ Name() string }).Name() }
	assert.Equal(t, "latency-least", name(rig.Must(slo.NewBestFit(slo.BestFitConfig{}))))
	assert.Equal(t, "latency-most", name(rig.Must(slo.NewBestFit(slo.BestFitConfig{MostHeadroom: true}))))
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
		h := rig.Must(slo.NewHeadroom(slo.HeadroomConfig{}))
		config := endpick.Config{Seed: 3, Clock: func() time.Time { return epoch }, Policy: endpick.Policy{
			Predictor: queueing{},
			Filters:   []endpick.Filter{rig.Must(slo.NewTier(slo.TierConfig{Headroom: h, DisableExploration: true}))},
			Scorers:   []endpick.Weighted{{Scorer: rig.Must(slo.NewBestFit(slo.BestFitConfig{Headroom: h, MostHeadroom: mostHeadroom})), Weight: 1}},
		}}
		for i := range 8 {
			config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: string(rune('a' + i))})
		}
		r := rig.Must(endpick.New(config))
		for range 16 {
			require.NoError(t, rig.Err(r.Route(ask(500, 0))))
		}
		for range 6 {
			tight := ask(60, 0)
			c, _ := rig.Must(r.Route(tight)).Candidate()
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
	assert.Equal(t, "server-0", pick(rig.Must(slo.NewBestFit(slo.BestFitConfig{})), ask(200, 0), cs))
	h := rig.Must(slo.NewHeadroom(slo.HeadroomConfig{UpperBound: true}))
	assert.Equal(t, "server-1", pick(rig.Must(slo.NewBestFit(slo.BestFitConfig{Headroom: h})), ask(200, 0), cs))
	assert.Equal(t, []string{"server-1"}, ids(filter(rig.Must(slo.NewTier(slo.TierConfig{Headroom: h, DisableExploration: true})), ask(200, 0), cs)))
}
