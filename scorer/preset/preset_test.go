package preset_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/slo"
	"github.com/endpick/endpick/slo/delay"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMarginalDelayConfig(t *testing.T) {
	for _, c := range []preset.MarginalDelayConfig{
		{Index: prefix.IndexConfig{BlocksPerEndpoint: -1}}, {Delay: delay.Config{MaxKinds: -1}}, {Headroom: slo.HeadroomConfig{OutputTokens: -1}},
		{Warmup: slo.WarmupConfig{Ramp: -1}}, {Tier: slo.TierConfig{Exploration: 2}}, {Tier: slo.TierConfig{Headroom: new(slo.Headroom)}},
	} {
		assert.ErrorAs(t, rig.Err(preset.MarginalDelay(c)), new(*endpick.ConfigError), "%+v", c)
	}
}

// Scorer and predictor are one stage, which is notified of each request once; so is what measures.
func TestMarginalDelayIsOneStage(t *testing.T) {
	c := rig.Must(preset.MarginalDelay(preset.MarginalDelayConfig{}))
	assert.Same(t, c.Policy.Predictor, c.Policy.Scorers[0].Scorer)
	observer := func(stage any) any { return stage.(interface{ Observer() any }).Observer() }
	assert.Same(t, observer(c.Policy.Admitters[0]), observer(c.Policy.Filters[1]), "both measure by one Headroom")
}

// Before there is a response to learn from it neither herds nor duplicates: prompts
// with a common head stay together while that costs less than computing it again,
// and others are spread.
func TestMarginalDelayFromTheFirstRequestOn(t *testing.T) {
	c := rig.Must(preset.MarginalDelay(preset.MarginalDelayConfig{}))
	c.Seed = 1
	for _, id := range []string{"a", "b", "c", "d"} {
		c.Endpoints = append(c.Endpoints, endpick.Endpoint{ID: id})
	}
	r := rig.Must(endpick.New(c))
	cold, copies := map[string]int{}, map[uint64]map[string]bool{}
	for n := range uint64(200) {
		blocks := make([]uint64, 100)
		for i := range blocks {
			blocks[i] = n<<32 | uint64(i)
			if group := n % 20; i < 80 && n%2 == 0 {
				blocks[i] = group<<32 | 1<<62 | uint64(i)
			}
		}
		id := rig.Must(r.Route(endpick.Request{InputTokens: 1600, Blocks: blocks, Stream: true})).Endpoint().ID
		if n%2 == 0 {
			if copies[n%20] == nil {
				copies[n%20] = map[string]bool{}
			}
			copies[n%20][id] = true
		} else {
			cold[id]++
		}
	}
	for id, n := range cold {
		assert.InDelta(t, 25, n, 12, id)
	}
	all := 0
	for _, servers := range copies {
		all += len(servers)
	}
	assert.Less(t, all, 20, "of ten groups on four servers, all at once")
}

func Example() {
	config := preset.Default()
	config.Endpoints = []endpick.Endpoint{{ID: "a", Address: "10.0.0.1:8000"}, {ID: "b", Address: "10.0.0.2:8000"}}
	router, err := endpick.New(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	prompt := prefix.AppendTokens(nil, prefix.Scope{Model: "llama"}.Seed(), make([]uint32, 4096))
	first, _ := router.Route(endpick.Request{Model: "llama", InputTokens: 4096, Blocks: prompt})
	first.Done(endpick.Outcome{})
	second, _ := router.Route(endpick.Request{Model: "llama", InputTokens: 4096, Blocks: prompt})
	fmt.Println(second.Endpoint() == first.Endpoint())
	// Output: true
}

// Of two servers that meet an SLO in expectation, the tier keeps the one that is likely to.
func TestMarginalDelayHoldsUpperBounds(t *testing.T) {
	const ms = time.Millisecond
	config := rig.Must(preset.MarginalDelay(preset.MarginalDelayConfig{Tier: slo.TierConfig{DisableExploration: true}}))
	candidates := []endpick.Candidate{
		{Endpoint: &endpick.Endpoint{ID: "a"}, Prediction: endpick.Prediction{Has: endpick.TTFT, TTFT: 100 * ms, TTFTUpper: 300 * ms}},
		{Endpoint: &endpick.Endpoint{ID: "b"}, Prediction: endpick.Prediction{Has: endpick.TTFT, TTFT: 150 * ms, TTFTUpper: 180 * ms}},
	}
	req := endpick.Request{Stream: true, InputTokens: 860, SLO: endpick.SLO{TTFT: 200 * ms}}
	left := config.Policy.Filters[1].Filter(&req, candidates)
	require.Len(t, left, 1)
	assert.Equal(t, "b", left[0].Endpoint.ID)
}
