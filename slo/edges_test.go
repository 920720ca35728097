package slo_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo"
)

// The error names the best endpoint, whatever its position and whichever endpoint
// has the better other latency.
func TestUnattainableNamesTheBest(t *testing.T) {
	predicted := []endpick.Prediction{both(300, 90), both(500, 60), both(400, 80)}
	for _, order := range [][3]int{{0, 1, 2}, {1, 0, 2}, {2, 1, 0}, {0, 2, 1}, {1, 2, 0}, {2, 0, 1}} {
		cs := fleet(predicted[order[0]], predicted[order[1]], predicted[order[2]])
		for _, x := range []struct {
			req        endpick.Request
			ttft, tpot time.Duration
		}{
			{ask(200, 50), 300 * ms, 60 * ms},
			{ask(200, 0), 300 * ms, 0},
			{ask(0, 50), 0, 60 * ms},
		} {
			x.req.Priority = -1
			var e *slo.UnattainableError
			require.ErrorAs(t, slo.NewLatencyAdmitter(nil).Admit(&x.req, cs), &e)
			assert.InDelta(t, x.ttft, e.TTFT, 1e3, "%v %+v", order, x.req.SLO)
			assert.InDelta(t, x.tpot, e.TPOT, 1e3, "%v %+v", order, x.req.SLO)
		}
	}
}

// An impossible latency loses only its own share; the others count.
func TestOneImpossibleLatency(t *testing.T) {
	h := newHeadroom(t, slo.HeadroomConfig{})
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
		{"TTFT, the whole is predicted", ask(20_000, 0), func(p *endpick.Prediction) { p.TTFT = -1 }, true, true},
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
	h := newHeadroom(t, slo.HeadroomConfig{UpperBound: true})
	p := whole(800) // at most 1200
	assert.InDelta(t, -0.2, slo.FitOf(h, &req, &fleet(p)[0]).TTFT, 1e-9)
	p.E2EUpper = 0
	assert.InDelta(t, 0.2, slo.FitOf(h, &req, &fleet(p)[0]).TTFT, 1e-9)
}

// Where the whole latency is predicted, it counts, and not the sum of its parts.
func TestTheWholeIsAsPredicted(t *testing.T) {
	req := ask(2000, 0)
	req.Stream = false
	p := both(100, 10) // 1100 ms for 100 tokens
	p.Has, p.E2E = p.Has|endpick.E2E, 1500*ms
	assert.InDelta(t, 0.25, slo.FitOf(newHeadroom(t, slo.HeadroomConfig{}), &req, &fleet(p)[0]).TTFT, 1e-9)
}

// If nothing but the time to first token is predicted, candidates are compared by that.
func TestFirstTokensAlone(t *testing.T) {
	first := func(ttft float64) endpick.Prediction {
		p := both(ttft, 0)
		p.Has = endpick.TTFT
		return p
	}
	req := ask(0, 0)
	for _, req.Stream = range []bool{true, false} {
		assert.Equal(t, []float64{1, 0.5}, score(newBestFit(t, slo.BestFitConfig{}), req, fleet(first(100), first(200))), "stream %v", req.Stream)
	}
}

// Whether a request explores those that miss their targets says nothing about whether it
// explores those that are not predicted.
func TestExplorationsAreIndependent(t *testing.T) {
	tier := newTier(t, slo.TierConfig{Exploration: 0.5})
	fit := newBestFit(t, slo.BestFitConfig{Exploration: 0.5})
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
	assert.InDelta(t, 0.6, slo.FitOf(newHeadroom(t, slo.HeadroomConfig{}), &req, c).TTFT, 1e-9, "1 s + 300 × 10 ms of 10 s")
	assert.InDelta(t, 0.8, slo.FitOf(newHeadroom(t, slo.HeadroomConfig{OutputTokens: 100}), &req, c).TTFT, 1e-9)
	req.ExpectedOutputTokens = 500
	assert.InDelta(t, 0.4, slo.FitOf(newHeadroom(t, slo.HeadroomConfig{}), &req, c).TTFT, 1e-9)
}

// With exploration, a candidate without a prediction comes first, whatever its
// state; without it, its queue is compared with the longest one, which may belong to
// a predicted candidate.
func TestUnpredictedBesideOthers(t *testing.T) {
	cs := fleet(both(100, 10), endpick.Prediction{}, endpick.Prediction{})
	cs[0].Waiting, cs[0].KVUsage = 10, 0
	cs[1].Waiting, cs[1].KVUsage = 5, 1
	cs[2].Waiting, cs[2].KVUsage = 0, 1
	explores := newBestFit(t, slo.BestFitConfig{Exploration: 1 - 1e-12})
	assert.InDeltaSlice(t, []float64{0.5, 0.75 + 0.25/6, 0.75 + 0.25/3}, score(explores, ask(0, 0), cs), 1e-9)
	cs[1].Waiting = 10
	assert.InDeltaSlice(t, []float64{0.5, 0.75, 0.75 + 0.25/3}, score(explores, ask(0, 0), cs), 1e-9)

	cs[1].Waiting = 5
	cautious := newBestFit(t, slo.BestFitConfig{DisableExploration: true})
	assert.InDeltaSlice(t, []float64{1, 1. / 6, 1. / 3}, score(cautious, ask(0, 0), cs), 1e-5)
}

// An endpoint that joined before the clock was set back stays new, even beside one
// that joined later by the old time.
func TestWarmupOfTwoBesideAClockThatWasSetBack(t *testing.T) {
	f := newWarmup(t, slo.WarmupConfig{})
	cs := fleet(make([]endpick.Prediction, 3)...)
	filter(f, ask(0, 0).At(epoch.Add(-time.Hour), 5, 1), cs[:1])
	filter(f, ask(0, 0).At(at(30_000), 5, 1), cs[:2])
	filter(f, ask(0, 0).At(epoch, 5, 1), cs)
	assert.InDelta(t, 1./3+2./3*0.5, considered(f, at(60_000), cs, "server-1"), 0.03)
	assert.Equal(t, 1.0, considered(f, at(90_000), cs, "server-1"))
}
