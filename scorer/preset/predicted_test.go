package preset_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/slo"
)

// scores are the preset's scores of two busy endpoints that hold nothing of a prompt of
// 860 tokens: the first answers in 100 ms, at worst 300 ms, and has 20 requests; the
// second in 150 ms, at worst 180 ms, and has 2. The prefill delays each request by 0.1
// s.
func scores(t *testing.T, c preset.PredictedLatencyConfig, target time.Duration) [2]float64 {
	c.Latency.Synchronous = true
	config, err := preset.PredictedLatency(c)
	require.NoError(t, err)
	const ms = time.Millisecond
	candidates := []endpick.Candidate{
		{Endpoint: &endpick.Endpoint{ID: "a"}, Running: 20, Prediction: endpick.Prediction{Has: endpick.TTFT | endpick.TPOT, TTFT: 100 * ms, TTFTUpper: 300 * ms}},
		{Endpoint: &endpick.Endpoint{ID: "b"}, Running: 2, Prediction: endpick.Prediction{Has: endpick.TTFT | endpick.TPOT, TTFT: 150 * ms, TTFTUpper: 180 * ms}},
	}
	req := endpick.Request{Stream: true, InputTokens: 860, SLO: endpick.SLO{TTFT: target}}
	var dst [2]float64
	config.Policy.Scorers[0].Scorer.Score(&req, candidates, dst[:])
	return dst
}

func TestPredictedLatencyHoldsTheUpperBoundAgainstAnSLO(t *testing.T) {
	const target = 200 * time.Millisecond
	// By the bound the first is 100 ms late, a deficit of a half, and the second has a
	// tenth of the target left; in expectation they have a half and a quarter left.
	got := scores(t, preset.PredictedLatencyConfig{}, target)
	assert.InDeltaSlice(t, []float64{0.2 / 1.5, 1 - 0.4*0.1}, got[:], 1e-9)
	got = scores(t, preset.PredictedLatencyConfig{DisableSpread: true}, target)
	assert.InDeltaSlice(t, []float64{1 - 0.4*0.5, 1 - 0.4*0.25}, got[:], 1e-9)
}

// Admission, tiers and scorer agree on what meets the target: the tier keeps the
// second of the two, whose upper bound is below it, and removes the first.
func TestPredictedLatencyMeasuresByOneHeadroom(t *testing.T) {
	const ms = time.Millisecond
	config, err := preset.PredictedLatency(preset.PredictedLatencyConfig{
		DisableGate: true, Tier: slo.TierConfig{DisableExploration: true}, Latency: predict.LatencyConfig{Synchronous: true},
	})
	require.NoError(t, err)
	tier := config.Policy.Filters[0]
	var measures []any
	for _, stage := range []any{config.Policy.Admitters[0], tier, config.Policy.Scorers[0].Scorer} {
		measures = append(measures, stage.(interface{ Observer() any }).Observer())
	}
	assert.Same(t, measures[0], measures[1])
	assert.Same(t, measures[0], measures[2])

	candidates := []endpick.Candidate{
		{Endpoint: &endpick.Endpoint{ID: "a"}, Prediction: endpick.Prediction{Has: endpick.TTFT, TTFT: 100 * ms, TTFTUpper: 300 * ms}},
		{Endpoint: &endpick.Endpoint{ID: "b"}, Prediction: endpick.Prediction{Has: endpick.TTFT, TTFT: 150 * ms, TTFTUpper: 180 * ms}},
	}
	req := endpick.Request{Stream: true, InputTokens: 860, SLO: endpick.SLO{TTFT: 200 * ms}}
	kept := tier.Filter(&req, candidates)
	require.Len(t, kept, 1)
	assert.Equal(t, "b", kept[0].Endpoint.ID)
}

func TestPredictedLatencyConsidersNeighbours(t *testing.T) {
	// 100 ms and 20 times 100 ms for the others; 150 ms and twice 100 ms.
	got := scores(t, preset.PredictedLatencyConfig{}, 0)
	assert.InDeltaSlice(t, []float64{350.0 / 2100, 1}, got[:], 1e-9)
	got = scores(t, preset.PredictedLatencyConfig{DisableNeighbours: true}, 0)
	assert.InDeltaSlice(t, []float64{1, 100.0 / 150}, got[:], 1e-9)
	got = scores(t, preset.PredictedLatencyConfig{BestFit: slo.BestFitConfig{PrefillRate: 8.6e6}}, 0)
	assert.InDeltaSlice(t, []float64{1, 102.0 / 150.2}, got[:], 1e-9)
}

func TestPredictedLatencyConfig(t *testing.T) {
	for _, c := range []preset.PredictedLatencyConfig{
		{Index: prefix.IndexConfig{BlocksPerEndpoint: -1}}, {Latency: predict.LatencyConfig{Trees: -1}}, {Affinity: prefix.AffinityConfig{Threshold: 2}},
		{Headroom: slo.HeadroomConfig{Bound: 2}}, {Warmup: slo.WarmupConfig{Ramp: -1}}, {Tier: slo.TierConfig{Exploration: 2}},
		{BestFit: slo.BestFitConfig{Strategy: 2}},
	} {
		_, err := preset.PredictedLatency(c)
		assert.Error(t, err, "%+v", c)
	}
	// Settings that would be ignored are refused.
	own := new(slo.Headroom)
	none := func(*endpick.Request, *endpick.Candidate) float64 { return 0 }
	for field, c := range map[string]preset.PredictedLatencyConfig{
		"Latency":               {Latency: predict.LatencyConfig{Trees: 1}, Learned: new(predict.Latency)},
		"Affinity.LimitToSaved": {Affinity: prefix.AffinityConfig{LimitToSaved: true}, FixedGate: true},
		"Tier.Headroom":         {Tier: slo.TierConfig{Headroom: own}},
		"BestFit.Headroom":      {BestFit: slo.BestFitConfig{Headroom: own}},
		"Headroom.Bound":        {Headroom: slo.HeadroomConfig{Bound: slo.Upper}, DisableSpread: true},
		"BestFit.Displaced":     {BestFit: slo.BestFitConfig{Displaced: none}, DisableClaims: true},
		"BestFit.PrefillRate":   {BestFit: slo.BestFitConfig{PrefillRate: 1}, DisableNeighbours: true},
		"Warmup":                {Warmup: slo.WarmupConfig{Ramp: 1}, DisableWarmup: true},
	} {
		_, err := preset.PredictedLatency(c)
		var refused *endpick.ConfigError
		require.ErrorAs(t, err, &refused, field)
		assert.Equal(t, "preset.PredictedLatencyConfig."+field, refused.Field)
	}
}

// The preset's gate holds no request for longer than that saves: 100 ms for 860 tokens.
// With the paper's tolerance it does, and without a load gate for any time.
func TestPredictedLatencyLimitsItsGate(t *testing.T) {
	kept := func(c preset.PredictedLatencyConfig, behind time.Duration) int {
		c.Affinity.DisableExploration = true
		config, err := preset.PredictedLatency(c)
		require.NoError(t, err)
		candidates := []endpick.Candidate{
			{Endpoint: &endpick.Endpoint{ID: "a"}, PrefixTokens: 860, Prediction: endpick.Prediction{Has: endpick.TTFT, TTFT: time.Second + behind}},
			{Endpoint: &endpick.Endpoint{ID: "b"}, Prediction: endpick.Prediction{Has: endpick.TTFT, TTFT: time.Second}},
		}
		req := endpick.Request{Stream: true, InputTokens: 900}
		return len(config.Policy.Filters[0].Filter(&req, candidates))
	}
	const ms = time.Millisecond
	assert.Equal(t, 1, kept(preset.PredictedLatencyConfig{}, 99*ms))
	assert.Equal(t, 2, kept(preset.PredictedLatencyConfig{}, 101*ms))
	assert.Equal(t, 1, kept(preset.PredictedLatencyConfig{FixedGate: true}, 4999*ms))
	assert.Equal(t, 2, kept(preset.PredictedLatencyConfig{FixedGate: true}, 5001*ms))
	assert.Equal(t, 1, kept(preset.PredictedLatencyConfig{Affinity: prefix.AffinityConfig{DisableLoadGate: true}}, time.Hour))
}
