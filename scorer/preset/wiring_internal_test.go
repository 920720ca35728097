package preset

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/slo"
)

// setting is a field of a stage's configuration.
func setting(t *testing.T, stage any, field string) reflect.Value {
	v := reflect.ValueOf(stage).Elem().FieldByName("config").FieldByName(field)
	require.True(t, v.IsValid(), "%T has no %s", stage, field)
	return v
}

// Settings of one stage reach the others that have to agree with it.
func TestStagesAgree(t *testing.T) {
	of := func(c PredictedLatencyConfig) endpick.Policy {
		c.Latency.Synchronous = true
		config, err := PredictedLatency(c)
		require.NoError(t, err)
		return config.Policy
	}
	p := of(PredictedLatencyConfig{
		Affinity: prefix.AffinityConfig{Threshold: 0.625}, Headroom: slo.HeadroomConfig{OutputTokens: 123}, BestFit: slo.BestFitConfig{PrefillRate: 4567},
	})
	fit := p.Scorers[0].Scorer
	assert.Equal(t, 4567.0, setting(t, fit, "PrefillRate").Float())
	assert.False(t, setting(t, fit, "Displaced").IsNil())
	for name, c := range map[string]PredictedLatencyConfig{
		"claims": {DisableClaims: true}, "neighbours": {DisableNeighbours: true}, "both": {DisableClaims: true, DisableNeighbours: true},
	} {
		p := of(c)
		assert.True(t, setting(t, p.Scorers[0].Scorer, "Displaced").IsNil(), name)
		want := 8600.0
		if c.DisableNeighbours {
			want = 0
		}
		assert.Equal(t, want, setting(t, p.Scorers[0].Scorer, "PrefillRate").Float(), name)
	}
	learned, err := predict.NewLatency(predict.LatencyConfig{Synchronous: true})
	require.NoError(t, err)
	config, err := PredictedLatency(PredictedLatencyConfig{Learned: learned})
	require.NoError(t, err)
	assert.Same(t, learned, config.Policy.Predictor)
}

// Marginal delay compares upper bounds with an SLO: of two servers that meet it in
// expectation, its tier keeps the one that is likely to.
func TestMarginalDelayHoldsUpperBounds(t *testing.T) {
	const ms = time.Millisecond
	config, err := MarginalDelay(MarginalDelayConfig{Tier: slo.TierConfig{DisableExploration: true}})
	require.NoError(t, err)
	candidates := []endpick.Candidate{
		{Endpoint: &endpick.Endpoint{ID: "a"}, Prediction: endpick.Prediction{Has: endpick.TTFT, TTFT: 100 * ms, TTFTUpper: 300 * ms}},
		{Endpoint: &endpick.Endpoint{ID: "b"}, Prediction: endpick.Prediction{Has: endpick.TTFT, TTFT: 150 * ms, TTFTUpper: 180 * ms}},
	}
	req := endpick.Request{Stream: true, InputTokens: 860, SLO: endpick.SLO{TTFT: 200 * ms}}
	kept := config.Policy.Filters[1].Filter(&req, candidates)
	require.Len(t, kept, 1)
	assert.Equal(t, "b", kept[0].Endpoint.ID)
}
