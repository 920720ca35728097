package all_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/slo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// scores are the policy's scores of two busy endpoints that hold nothing of a prompt of
// 860 tokens: the first answers in 100 ms, at worst 300 ms, and has 20 requests; the
// second in 150 ms, at worst 180 ms, and has 2. The prefill delays each request by 0.1
// s.
func scores(c all.PredictedLatencyConfig, target time.Duration) [2]float64 {
	config := rig.Must(all.PredictedLatency(c))
	const has = endpick.TTFT | endpick.TPOT
	candidates := []endpick.Candidate{
		{Endpoint: &endpick.Endpoint{ID: "a"}, Running: 20, Prediction: endpick.Prediction{Has: has, TTFT: 100 * ms, TTFTUpper: 300 * ms}},
		{Endpoint: &endpick.Endpoint{ID: "b"}, Running: 2, Prediction: endpick.Prediction{Has: has, TTFT: 150 * ms, TTFTUpper: 180 * ms}},
	}
	req := endpick.Request{Stream: true, InputTokens: 860, SLO: endpick.SLO{TTFT: target}}
	var dst [2]float64
	config.Policy.Scorers[0].Scorer.Score(&req, candidates, dst[:])
	return dst
}

// By the bound the first is 100 ms late, a deficit of a half, and the second has a
// tenth of the target left; in expectation they have a half and a quarter left.
func TestPredictedLatencyHoldsTheUpperBoundAgainstAnSLO(t *testing.T) {
	got := scores(all.PredictedLatencyConfig{}, 200*ms)
	assert.InDeltaSlice(t, []float64{0.2 / 1.5, 1 - 0.4*0.1}, got[:], 1e-9)
	got = scores(all.PredictedLatencyConfig{Paper: true}, 200*ms)
	assert.InDeltaSlice(t, []float64{1 - 0.4*0.5, 1 - 0.4*0.25}, got[:], 1e-9)
}

// Admission, tiers and scorer agree on what meets the target: the tier keeps the
// second of the two, whose upper bound is below it, and removes the first.
func TestPredictedLatencyMeasuresByOneHeadroom(t *testing.T) {
	config := rig.Must(all.PredictedLatency(all.PredictedLatencyConfig{Tier: slo.TierConfig{DisableExploration: true}}))
	tier := config.Policy.Filters[2]
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
	left := tier.Filter(&req, candidates)
	require.Len(t, left, 1)
	assert.Equal(t, "b", left[0].Endpoint.ID)
}

func TestPredictedLatencyConsidersNeighbours(t *testing.T) {
	// A request without targets stays away from where it would break that of a running one.
	for paper, left := range map[bool]int{false: 1, true: 2} {
		filters := rig.Must(all.PredictedLatency(all.PredictedLatencyConfig{Paper: paper, Tier: slo.TierConfig{DisableExploration: true}})).Policy.Filters
		tier := filters[len(filters)-1]
		candidates := make([]endpick.Candidate, 2)
		for i := range candidates {
			candidates[i] = endpick.Candidate{Ref: endpick.EndpointRef{Slot: uint32(i), Generation: 1}, Prediction: endpick.Prediction{Has: endpick.TPOT, TPOT: 20 * ms, TPOTUpper: 20 * ms}}
		}
		one := endpick.Request{Stream: true, SLO: endpick.SLO{TPOT: 20 * ms}}
		tier.(interface{ Observer() any }).Observer().(endpick.RoutedObserver).Routed(&endpick.Event{
			Lease: endpick.LeaseRef{Generation: 1}, Request: &one, Candidate: &candidates[0],
		})
		candidates[0].Prediction.TPOT, candidates[0].Prediction.TPOTUpper = 30*ms, 30*ms
		assert.Len(t, tier.Filter(&endpick.Request{Stream: true}, candidates), left)
	}
	// 100 ms and 20 times 100 ms for the others; 150 ms and twice 100 ms.
	got := scores(all.PredictedLatencyConfig{}, 0)
	assert.InDeltaSlice(t, []float64{350.0 / 2100, 1}, got[:], 1e-9)
	got = scores(all.PredictedLatencyConfig{Paper: true}, 0)
	assert.InDeltaSlice(t, []float64{1, 100.0 / 150}, got[:], 1e-9)
	got = scores(all.PredictedLatencyConfig{BestFit: slo.BestFitConfig{PrefillRate: 8.6e6}}, 0)
	assert.InDeltaSlice(t, []float64{1, 102.0 / 150.2}, got[:], 1e-9)
}

func TestPredictedLatencyConfig(t *testing.T) {
	for _, c := range []all.PredictedLatencyConfig{
		{Index: prefix.IndexConfig{BlocksPerEndpoint: -1}}, {Latency: predict.LatencyConfig{Trees: -1}}, {Affinity: prefix.AffinityConfig{Threshold: 2}},
		{Headroom: slo.HeadroomConfig{OutputTokens: -1}}, {Warmup: slo.WarmupConfig{Ramp: -1}}, {Tier: slo.TierConfig{Exploration: 2}},
		{BestFit: slo.BestFitConfig{Exploration: 2}},
	} {
		assert.ErrorAs(t, rig.Err(all.PredictedLatency(c)), new(*endpick.ConfigError), "%+v", c)
	}
	// Settings that would be ignored are refused.
	own := new(slo.Headroom)
	for field, c := range map[string]all.PredictedLatencyConfig{
		"Tier.Headroom":         {Tier: slo.TierConfig{Headroom: own}},
		"BestFit.Headroom":      {BestFit: slo.BestFitConfig{Headroom: own}},
		"Affinity.LimitToSaved": {Affinity: prefix.AffinityConfig{LimitToSaved: true}, Paper: true},
		"Headroom.UpperBound":   {Headroom: slo.HeadroomConfig{UpperBound: true}, Paper: true},
		"Warmup":                {Warmup: slo.WarmupConfig{Ramp: 1}, Paper: true},
		"BestFit.PrefillRate":   {BestFit: slo.BestFitConfig{PrefillRate: 1}, Paper: true},
	} {
		assert.Equal(t, "all.PredictedLatencyConfig."+field, rig.Field(all.PredictedLatency(c)), field)
	}
}

// The gate holds no request for longer than that saves: 100 ms for 860 tokens.
// With the paper's tolerance it does, and without a load gate for any time.
func TestPredictedLatencyLimitsItsGate(t *testing.T) {
	left := func(c all.PredictedLatencyConfig, behind time.Duration) int {
		c.Affinity.DisableExploration = true
		config := rig.Must(all.PredictedLatency(c))
		candidates := []endpick.Candidate{
			{Endpoint: &endpick.Endpoint{ID: "a"}, PrefixTokens: 860, Prediction: endpick.Prediction{Has: endpick.TTFT, TTFT: time.Second + behind}},
			{Endpoint: &endpick.Endpoint{ID: "b"}, Prediction: endpick.Prediction{Has: endpick.TTFT, TTFT: time.Second}},
		}
		req := endpick.Request{Stream: true, InputTokens: 900}
		filters := config.Policy.Filters
		return len(filters[len(filters)-2].Filter(&req, candidates))
	}
	assert.Equal(t, 1, left(all.PredictedLatencyConfig{}, 99*ms))
	assert.Equal(t, 2, left(all.PredictedLatencyConfig{}, 101*ms))
	assert.Equal(t, 1, left(all.PredictedLatencyConfig{Paper: true}, 4999*ms))
	assert.Equal(t, 2, left(all.PredictedLatencyConfig{Paper: true}, 5001*ms))
	assert.Equal(t, 1, left(all.PredictedLatencyConfig{Affinity: prefix.AffinityConfig{DisableLoadGate: true}}, time.Hour))
}

func predicted(endpoints []endpick.Endpoint) (*endpick.Router, error) {
	config, err := all.PredictedLatency(all.PredictedLatencyConfig{})
	if err != nil {
		return nil, err
	}
	config.Endpoints = endpoints
	return endpick.New(config)
}

// A request with latency targets. Before anything is learned there is no prediction,
// and load decides.
func ExamplePredictedLatency() {
	router, err := predicted([]endpick.Endpoint{{ID: "busy"}, {ID: "idle"}})
	if err != nil {
		panic(err)
	}
	for id, running := range map[string]float64{"busy": 20, "idle": 1} {
		if err := router.Report(id, endpick.Load{Running: running, Waiting: running, KVUsage: running / 40}); err != nil {
			panic(err)
		}
	}
	lease, err := router.Route(endpick.Request{
		InputTokens: 500, Stream: true, SLO: endpick.SLO{TTFT: time.Second, TPOT: 50 * time.Millisecond},
	})
	if err != nil {
		panic(err)
	}
	defer lease.Done(endpick.Outcome{})
	fmt.Println(lease.Endpoint().ID)
	// Output: idle
}
