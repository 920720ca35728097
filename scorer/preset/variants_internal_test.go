package preset

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/slo"
)

// Each variant changes what it names, and nothing else.
func TestVariantsAreWhatTheySay(t *testing.T) {
	want := map[string]PredictedLatencyConfig{
		"fixed-gate": {FixedGate: true},
		"min-max":    {BestFit: slo.BestFitConfig{Form: slo.MinMax}},
		"most":       {BestFit: slo.BestFitConfig{Strategy: slo.Most}},
		"no-exploration": {
			Affinity: prefix.AffinityConfig{DisableExploration: true},
			Tier:     slo.TierConfig{DisableExploration: true}, BestFit: slo.BestFitConfig{DisableExploration: true},
		},
		"no-claims":     {DisableClaims: true},
		"no-gate":       {DisableGate: true},
		"no-load-gate":  {Affinity: prefix.AffinityConfig{DisableLoadGate: true}},
		"no-neighbours": {DisableNeighbours: true},
		"no-running":    {Headroom: slo.HeadroomConfig{DisableRunning: true}},
		"no-warmup":     {DisableWarmup: true},
		"no-spread":     {DisableSpread: true},
		"plain-window":  {Latency: predict.LatencyConfig{DisableStrata: true}},
		"synchronous":   {Latency: predict.LatencyConfig{Synchronous: true}},
	}
	for _, v := range variants {
		var got PredictedLatencyConfig
		v.apply(&got)
		assert.Equal(t, want[v.name], got, v.name)
	}
	assert.Len(t, variants, len(want))
}

// The constants of the policies' authors.
func TestGates(t *testing.T) {
	gate := func(c endpick.Config) any { return c.Policy.Filters[0] }
	assert.Equal(t, scorer.MatchGate{Range: 8}, gate(AIBrix()))
	assert.Equal(t, scorer.MatchGate{Share: 0.5}, gate(Preble()))
	assert.Equal(t, scorer.MatchGate{Share: 0.5, Range: 32, Ratio: 1.1}, gate(SGLang()))
}
