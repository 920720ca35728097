package slo_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/scorertest"
	"github.com/endpick/endpick/slo"
)

// A Headroom belongs to one router, whichever of its stages is added first.
func TestStagesBelongToOneRouter(t *testing.T) {
	h := newHeadroom(t, slo.HeadroomConfig{})
	fit := endpick.Policy{Scorers: []endpick.Weighted{{Scorer: newBestFit(t, slo.BestFitConfig{Headroom: h}), Weight: 1}}}
	_, err := endpick.New(endpick.Config{Policy: fit})
	require.NoError(t, err)
	warm := endpick.Policy{Filters: []endpick.Filter{newWarmup(t, slo.WarmupConfig{})}}
	_, err = endpick.New(endpick.Config{Policy: warm})
	require.NoError(t, err)
	for name, p := range map[string]endpick.Policy{
		"the same scorer": fit,
		"a tier":          {Filters: []endpick.Filter{newTier(t, slo.TierConfig{Headroom: h})}},
		"an admitter":     {Admitters: []endpick.Admitter{slo.NewLatencyAdmitter(h)}},
		"a warm-up":       warm,
	} {
		_, err := endpick.New(endpick.Config{Policy: p})
		assert.ErrorAs(t, err, new(*endpick.ConfigError), name)
	}
}

func TestStagesConform(t *testing.T) {
	for name, config := range map[string]slo.BestFitConfig{
		"least": {}, "most": {MostHeadroom: true}, "neighbours": {PrefillRate: 8600},
	} {
		t.Run("best fit "+name, func(t *testing.T) {
			scorertest.RunWeighted(t, func(t *testing.T) endpick.Scorer {
				return rig.Must(slo.NewBestFit(config))
			})
		})
	}
	for name, newFilter := range map[string]func() (endpick.Filter, error){
		"tier":   func() (endpick.Filter, error) { return slo.NewTier(slo.TierConfig{}) },
		"warmup": func() (endpick.Filter, error) { return slo.NewWarmup(slo.WarmupConfig{}) },
	} {
		t.Run(name, func(t *testing.T) {
			scorertest.RunFilter(t, func(t *testing.T) endpick.Filter {
				return rig.Must(newFilter())
			})
		})
	}
	t.Run("latency admitter", func(t *testing.T) {
		scorertest.RunAdmitter(t, func(*testing.T) endpick.Admitter { return slo.NewLatencyAdmitter(nil) })
	})
	t.Run("headroom", func(t *testing.T) {
		scorertest.RunObserver(t, func(t *testing.T) any {
			return slo.NewLatencyAdmitter(newHeadroom(t, slo.HeadroomConfig{})).(interface{ Observer() any }).Observer()
		})
	})
}
