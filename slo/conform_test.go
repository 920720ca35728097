package slo_test

import (
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/scorertest"
	"github.com/endpick/endpick/slo"
)

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
