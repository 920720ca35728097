package slo_test

import (
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/scorertest"
	"github.com/endpick/endpick/slo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A Headroom belongs to one router, whichever of its stages is added first.
func TestStagesBelongToOneRouter(t *testing.T) {
	h := rig.Must(slo.NewHeadroom(slo.HeadroomConfig{}))
	fit := endpick.Policy{Scorers: []endpick.Weighted{{Scorer: rig.Must(slo.NewBestFit(slo.BestFitConfig{Headroom: h})), Weight: 1}}}
	require.NoError(t, rig.Err(endpick.New(endpick.Config{Policy: fit})))
	for name, p := range map[string]endpick.Policy{
		"the same scorer": fit,
		"a tier":          {Filters: []endpick.Filter{rig.Must(slo.NewTier(slo.TierConfig{Headroom: h}))}},
		"an admitter":     {Admitters: []endpick.Admitter{slo.NewLatencyAdmitter(h)}},
	} {
		assert.ErrorAs(t, rig.Err(endpick.New(endpick.Config{Policy: p})), new(*endpick.ConfigError), name)
	}
}

func TestStagesConform(t *testing.T) {
	for name, config := range map[string]slo.BestFitConfig{
		"least": {}, "most": {MostHeadroom: true}, "neighbours": {PrefillRate: 8600},
	} {
		t.Run("best fit "+name, func(t *testing.T) {
			scorertest.RunWeighted(t, func(t *testing.T) endpick.Scorer { return rig.Must(slo.NewBestFit(config)) })
		})
	}
	for name, newFilter := range map[string]func() (endpick.Filter, error){
		"tier":   func() (endpick.Filter, error) { return slo.NewTier(slo.TierConfig{}) },
		"warmup": func() (endpick.Filter, error) { return slo.NewWarmup(slo.WarmupConfig{}) },
	} {
		t.Run(name, func(t *testing.T) {
			scorertest.RunFilter(t, func(t *testing.T) endpick.Filter { return rig.Must(newFilter()) }, map[string]string{})
		})
	}
	t.Run("latency admitter", func(t *testing.T) {
		scorertest.RunAdmitter(t, func(*testing.T) endpick.Admitter { return slo.NewLatencyAdmitter(nil) })
	})
	t.Run("headroom", func(t *testing.T) {
		scorertest.RunObserver(t, func(t *testing.T) any {
			return slo.NewLatencyAdmitter(rig.Must(slo.NewHeadroom(slo.HeadroomConfig{}))).(interface{ Observer() any }).Observer()
		})
	})
}

func TestStagesAllocateNothing(t *testing.T) {
	rig.SkipUnderRace(t, "the race detector allocates")
	cs := benchmarkFleet(100)
	cs[7].Prediction = endpick.Prediction{}
	dst := make([]float64, len(cs))
	nothing := func(what string, f func()) { assert.Zero(t, testing.AllocsPerRun(20, f), what) }
	for _, config := range []slo.BestFitConfig{{}, {PrefillRate: 8600}} {
		h := rig.Must(slo.NewHeadroom(slo.HeadroomConfig{}))
		config.Headroom = h
		fit, tier := rig.Must(slo.NewBestFit(config)), rig.Must(slo.NewTier(slo.TierConfig{Headroom: h}))
		running := ask(0, 20)
		e := event(0, &running, &cs[0])
		slo.Routed(h, e)
		for _, req := range []endpick.Request{ask(200, 50), ask(0, 0)} {
			nothing("best fit", func() { fit.Score(&req, cs, dst) })
			nothing("tier", func() { tier.Filter(&req, cs) })
		}
		nothing("running targets", func() {
			slo.Done(h, e, nil)
			e.Lease.Generation++
			slo.Routed(h, e)
		})
		assert.Equal(t, 1, slo.RunningTargets(h))
	}
	warm, req := rig.Must(slo.NewWarmup(slo.WarmupConfig{})), ask(0, 0)
	warm.Filter(&req, cs[1:])
	req = req.At(at(1000), 1, 1)
	nothing("warm-up", func() { warm.Filter(&req, cs) })
}
