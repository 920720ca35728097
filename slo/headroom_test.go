package slo_test

import (
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/slo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestHeadroom(t *testing.T) {
	year := float64(365 * 24 * time.Hour / ms)
	for _, tc := range []struct {
		name   string
		config slo.HeadroomConfig
		req    endpick.Request
		p      endpick.Prediction
		want   slo.Fit
	}{
		// (200 − 100)/200 = 0.5; (50 − 40)/50 = 0.2; 0.8·0.5 + 0.2·0.2 = 0.44.
		{"both", slo.HeadroomConfig{}, ask(200, 50), both(100, 40), slo.Fit{Known: true, TTFT: 0.5, TPOT: 0.2, Combined: 0.44}},
		{"other weights", slo.HeadroomConfig{TTFTWeight: 0.5}, ask(200, 50), both(100, 40),
			slo.Fit{Known: true, TTFT: 0.5, TPOT: 0.2, Combined: 0.35}},
		// TPOT is (50 − 60)/50 = −0.2; TTFT's surplus does not make up for it:
		// 0.2·0.2 = 0.04.
		{"surplus pays for nothing", slo.HeadroomConfig{}, ask(200, 50), both(100, 60),
			slo.Fit{Known: true, TTFT: 0.5, TPOT: -0.2, Combined: 0.36, Deficit: 0.04}},
		// 0.8·0.5 + 0.2·1 = 0.6.
		{"both are missed", slo.HeadroomConfig{}, ask(200, 50), both(300, 100),
			slo.Fit{Known: true, TTFT: -0.5, TPOT: -1, Combined: -0.6, Deficit: 0.6}},
		{"TTFT alone has all the weight", slo.HeadroomConfig{}, ask(200, 0), both(300, 1000),
			slo.Fit{Known: true, TTFT: -0.5, Combined: -0.5, Deficit: 0.5}},
		{"TPOT alone has all the weight", slo.HeadroomConfig{}, ask(0, 50), both(300, 40), slo.Fit{Known: true, TPOT: 0.2, Combined: 0.2}},
		{"just met", slo.HeadroomConfig{}, ask(200, 50), both(200, 50), slo.Fit{Known: true}},
		{"nothing is asked for", slo.HeadroomConfig{}, ask(0, 0), both(200, 50), slo.Fit{Known: true}},
		{"a negative target is none", slo.HeadroomConfig{}, ask(-5, 50), both(200, 40), slo.Fit{Known: true, TPOT: 0.2, Combined: 0.2}},
		{"a year", slo.HeadroomConfig{}, ask(year, 0), both(0, 50), slo.Fit{Known: true, TTFT: 1, Combined: 1}},
		// Upper bounds are 150 and 60: 0.25 and −0.2.
		{"upper bound", slo.HeadroomConfig{UpperBound: true}, ask(200, 50), both(100, 40),
			slo.Fit{Known: true, TTFT: 0.25, TPOT: -0.2, Combined: 0.16, Deficit: 0.04}},
		{"an upper bound that is missing is the expected value", slo.HeadroomConfig{UpperBound: true}, ask(200, 0),
			endpick.Prediction{Has: endpick.TTFT, TTFT: 100 * ms}, slo.Fit{Known: true, TTFT: 0.5, Combined: 0.5}},
		{"of TPOT likewise", slo.HeadroomConfig{UpperBound: true}, ask(0, 50),
			endpick.Prediction{Has: endpick.TPOT, TPOT: 40 * ms}, slo.Fit{Known: true, TPOT: 0.2, Combined: 0.2}},
		{"nothing is predicted", slo.HeadroomConfig{}, ask(200, 50), endpick.Prediction{}, slo.Fit{}},
		{"one of two is predicted", slo.HeadroomConfig{}, ask(200, 50), endpick.Prediction{Has: endpick.TTFT, TTFT: 1},
			slo.Fit{TTFT: 1 - 1.0/(200e6), Combined: 0.8 * (1 - 1.0/(200e6))}},
		{"a negative prediction is none", slo.HeadroomConfig{}, ask(200, 0), both(-1, 40), slo.Fit{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cs := fleet(tc.p)
			got := slo.FitOf(rig.Must(slo.NewHeadroom(tc.config)), &tc.req, &cs[0])
			assert.Equal(t, tc.want.Known, got.Known)
			assert.Equal(t, tc.want.Known && tc.want.Deficit == 0, got.Meets())
			if !tc.want.Known {
				return
			}
			assert.InDelta(t, tc.want.TTFT, got.TTFT, 1e-9)
			assert.InDelta(t, tc.want.TPOT, got.TPOT, 1e-9)
			assert.InDelta(t, tc.want.Combined, got.Combined, 1e-9)
			assert.InDelta(t, tc.want.Deficit, got.Deficit, 1e-9)
		})
	}
}

// A request must not break the strictest TPOT target on an endpoint.
func TestHeadroomOfRunningRequests(t *testing.T) {
	h := rig.Must(slo.NewHeadroom(slo.HeadroomConfig{}))
	cs := fleet(both(100, 40), both(100, 40))
	routed := cs[0]
	routed.Prediction = both(100, 20) // the endpoint was empty
	deficit := func(req endpick.Request) float64 {
		f := slo.FitOf(h, &req, &cs[0])
		require.True(t, f.Known)
		assert.Equal(t, f.Deficit == 0, f.Meets())
		return f.Deficit
	}
	strict, medium, loose := ask(0, 20), ask(0, 32), ask(0, 400)
	slo.Routed(h, event(0, &loose, &routed))
	assert.Zero(t, deficit(ask(200, 50)))
	slo.Routed(h, event(1, &strict, &routed))
	slo.Routed(h, event(2, &medium, &routed))
	// (40 − 20)/20 = 1, with the weight of TPOT.
	assert.InDelta(t, 0.2, deficit(ask(200, 50)), 1e-12)
	assert.InDelta(t, 0.2, deficit(ask(200, 0)), 1e-12, "also for a request that asks for TTFT alone")
	assert.InDelta(t, 0.2, deficit(ask(0, 0)), 1e-12, "or for nothing")
	assert.InDelta(t, 1, deficit(ask(0, 50)), 1e-12)
	assert.InDelta(t, 3, deficit(ask(0, 10)), 1e-12, "its own target is stricter")
	req := ask(200, 50)
	f := slo.FitOf(h, &req, &cs[1])
	assert.True(t, f.Meets(), "nobody runs there")
	f = slo.FitOf(h, &req, &cs[0])
	assert.InDelta(t, 0.44, f.Combined, 1e-12, "headroom is the request's own")

	slo.Done(h, event(1, &strict, &cs[0]), &endpick.Outcome{})
	slo.Done(h, event(1, &strict, &cs[0]), &endpick.Outcome{})
	assert.InDelta(t, 0.25, deficit(ask(0, 50)), 1e-12, "(40 − 32)/32")
	assert.Equal(t, 2, slo.RunningTargets(h), "it ended once")
	slo.Done(h, event(2, &medium, &cs[0]), &endpick.Outcome{})
	assert.Zero(t, deficit(ask(0, 50)))

	entire := strict
	entire.Stream = false
	slo.Routed(h, event(3, &entire, &routed))
	assert.Zero(t, deficit(ask(0, 50)), "nobody can see the TPOT of a whole response")

	blind := cs[0]
	blind.Prediction.Has = endpick.TTFT
	slo.Routed(h, event(4, &strict, &routed))
	ttft := ask(200, 0)
	f = slo.FitOf(h, &ttft, &blind)
	assert.True(t, f.Meets(), "without a prediction of TPOT there is nothing to hold against it")
}

// The targets held are those of the open leases that were expected to keep
// them.
func TestRunningTargetsAreTheOpenLeases(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := rig.Must(slo.NewHeadroom(slo.HeadroomConfig{}))
		type lease struct {
			endpoint int
			req      endpick.Request
			key      endpick.LeaseRef
			tpot     int // predicted
		}
		open := map[int]lease{}
		generation := map[int]uint32{}
		cs := fleet(make([]endpick.Prediction, 3)...)
		for i := range cs {
			cs[i].Prediction = both(1, 1000)
		}
		event := func(l lease) *endpick.Event {
			c := cs[l.endpoint]
			c.Prediction = both(1, float64(l.tpot))
			return &endpick.Event{Lease: l.key, Request: &l.req, Candidate: &c}
		}
		done := func(slot int) {
			slo.Done(h, event(open[slot]), &endpick.Outcome{})
			delete(open, slot)
		}
		t.Repeat(map[string]func(*rapid.T){
			"route": func(t *rapid.T) {
				slot := rapid.IntRange(0, 9).Draw(t, "lease")
				if _, ok := open[slot]; ok {
					return
				}
				generation[slot]++
				l := lease{
					endpoint: rapid.IntRange(0, 2).Draw(t, "endpoint"),
					req:      ask(0, float64(rapid.IntRange(0, 4).Draw(t, "target"))),
					key:      endpick.LeaseRef{Slot: uint32(slot), Generation: generation[slot]},
					tpot:     rapid.IntRange(0, 4).Draw(t, "predicted"),
				}
				open[slot] = l
				slo.Routed(h, event(l))
			},
			"done": func(t *rapid.T) {
				slot := rapid.IntRange(0, 9).Draw(t, "lease")
				if _, ok := open[slot]; ok {
					done(slot)
				}
			},
			// The router gives a slot to another endpoint when its leases
			// have ended.
			"replace": func(t *rapid.T) {
				i := rapid.IntRange(0, 2).Draw(t, "endpoint")
				for slot, l := range open {
					if l.endpoint == i {
						done(slot)
					}
				}
				cs[i].Ref.Generation++
			},
			"": func(t *rapid.T) {
				req, held := ask(1000, 0), 0
				for i := range cs {
					strictest := 0.0
					for _, l := range open {
						target := float64(l.req.SLO.TPOT) / 1e6
						if l.endpoint != i || target == 0 || float64(l.tpot) > target {
							continue
						}
						held++
						if strictest == 0 || target < strictest {
							strictest = target
						}
					}
					want := 0.0
					if strictest > 0 {
						want = 0.2 * (1000 - strictest) / strictest
					}
					require.InDelta(t, want, slo.FitOf(h, &req, &cs[i]).Deficit, 1e-9, "endpoint %d", i)
				}
				require.Equal(t, held, slo.RunningTargets(h))
			},
		})
	})
}

// Of several responses beside each other each has its part of the tokens.
func TestTheLengthOfOneResponse(t *testing.T) {
	h := rig.Must(slo.NewHeadroom(slo.HeadroomConfig{OutputTokens: 7}))
	for want, req := range map[float64]endpick.Request{
		7: {Responses: 4}, 100: {ExpectedOutputTokens: 100}, 90: {ExpectedOutputTokens: 90, Responses: 1}, 25: {ExpectedOutputTokens: 100, Responses: 4},
	} {
		require.Equal(t, want, slo.OutputTokens(h, &req))
	}
}

func TestOneImpossibleLatency(t *testing.T) {
	h := rig.Must(slo.NewHeadroom(slo.HeadroomConfig{}))
	for _, x := range []struct {
		name      string
		req       endpick.Request
		change    func(*endpick.Prediction)
		known     bool
		notStream bool
	}{
		{"TPOT, TTFT is asked for", ask(200, 0), func(p *endpick.Prediction) { p.TPOT = -1 }, true, false},
		{"TPOT, TPOT is asked for", ask(0, 50), func(p *endpick.Prediction) { p.TPOT = -1 }, false, false},
		{"TTFT, TPOT is asked for", ask(0, 50), func(p *endpick.Prediction) { p.TTFT = -1 }, true, false},
		{"TTFT, both are asked for", ask(200, 50), func(p *endpick.Prediction) { p.TTFT = -1 }, false, false},
		{"E2E, of a stream", ask(200, 50), func(p *endpick.Prediction) { p.E2E = -1 }, true, false},
		{"E2E, the whole is the sum", ask(20_000, 0), func(p *endpick.Prediction) { p.E2E = -1 }, true, true},
		{"both, the whole is predicted", ask(20_000, 50), func(p *endpick.Prediction) { p.TTFT, p.TPOT = -1, -1 }, true, true},
		{"TTFT and E2E, the whole is not known", ask(20_000, 0), func(p *endpick.Prediction) { p.TTFT, p.E2E = -1, -1 }, false, true},
	} {
		p := both(100, 10)
		p.Has, p.E2E = p.Has|endpick.E2E, 1100*ms
		x.change(&p)
		x.req.Stream = !x.notStream
		assert.Equal(t, x.known, slo.FitOf(h, &x.req, &fleet(p)[0]).Known, x.name)
	}
}

// The upper bound of a whole response is compared with its target; where the bound
// lies below the expectation, the expectation is.
func TestUpperBoundOfTheWhole(t *testing.T) {
	req := ask(1000, 0)
	req.Stream = false
	h := rig.Must(slo.NewHeadroom(slo.HeadroomConfig{UpperBound: true}))
	p := whole(800) // at most 1200
	assert.InDelta(t, -0.2, slo.FitOf(h, &req, &fleet(p)[0]).TTFT, 1e-9)
	p.E2EUpper = 0
	assert.InDelta(t, 0.2, slo.FitOf(h, &req, &fleet(p)[0]).TTFT, 1e-9)
}

// Whether a request explores those that miss their targets says nothing about whether it
// explores those that are not predicted.
func TestExplorationsAreIndependent(t *testing.T) {
	tier := rig.Must(slo.NewTier(slo.TierConfig{Exploration: 0.5}))
	fit := rig.Must(slo.NewBestFit(slo.BestFitConfig{Exploration: 0.5}))
	same := 0
	for n := range 1000 {
		cs := fleet(both(100, 1), both(900, 1))
		req := ask(500, 0).At(epoch, 1, uint64(n))
		missing := tier.Filter(&req, cs)[0].Prediction.TTFT == 900*ms
		got := score(fit, ask(0, 0).At(epoch, 1, uint64(n)), fleet(both(100, 1), endpick.Prediction{}))
		if missing == (got[1] > got[0]) {
			same++
		}
	}
	assert.InDelta(t, 500, same, 100)
}

// A response of unknown length is assumed to have 300 tokens.
func TestUnknownLength(t *testing.T) {
	req := ask(10_000, 0)
	req.Stream, req.ExpectedOutputTokens = false, 0
	c := &fleet(both(1000, 10))[0]
	assert.InDelta(t, 0.6, slo.FitOf(rig.Must(slo.NewHeadroom(slo.HeadroomConfig{})), &req, c).TTFT, 1e-9, "1 s + 300 × 10 ms of 10 s")
	assert.InDelta(t, 0.8, slo.FitOf(rig.Must(slo.NewHeadroom(slo.HeadroomConfig{OutputTokens: 100})), &req, c).TTFT, 1e-9)
	req.ExpectedOutputTokens = 500
	assert.InDelta(t, 0.4, slo.FitOf(rig.Must(slo.NewHeadroom(slo.HeadroomConfig{})), &req, c).TTFT, 1e-9)
}

// With exploration, a candidate without a prediction comes first, whatever its
// state; without it, its queue is compared with the longest one, which may belong to
// a predicted candidate.
func TestUnpredictedBesideOthers(t *testing.T) {
	cs := fleet(both(100, 10), endpick.Prediction{}, endpick.Prediction{})
	cs[0].Waiting, cs[0].KVUsage = 10, 0
	cs[1].Waiting, cs[1].KVUsage = 5, 1
	cs[2].Waiting, cs[2].KVUsage = 0, 1
	explores := rig.Must(slo.NewBestFit(slo.BestFitConfig{Exploration: 1 - 1e-12}))
	assert.InDeltaSlice(t, []float64{0.5, 0.75 + 0.25/6, 0.75 + 0.25/3}, score(explores, ask(0, 0), cs), 1e-9)
	cs[1].Waiting = 10
	assert.InDeltaSlice(t, []float64{0.5, 0.75, 0.75 + 0.25/3}, score(explores, ask(0, 0), cs), 1e-9)

	cs[1].Waiting = 5
	cautious := rig.Must(slo.NewBestFit(slo.BestFitConfig{DisableExploration: true}))
	assert.InDeltaSlice(t, []float64{1, 1. / 6, 1. / 3}, score(cautious, ask(0, 0), cs), 1e-5)
}
