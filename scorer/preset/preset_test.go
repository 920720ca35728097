package preset_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/scorer/scorertest"
)

func TestByName(t *testing.T) {
	for _, name := range preset.Names() {
		config, err := preset.ByName(name)
		require.NoError(t, err)
		assert.Equal(t, name, config.Policy.Name)
		_, err = endpick.New(config)
		assert.NoError(t, err)
	}
	_, err := preset.ByName("lametric")
	var unknown *preset.UnknownError
	require.ErrorAs(t, err, &unknown)
	assert.Equal(t, "lametric", unknown.Name)
	assert.ErrorContains(t, err, `unknown policy "lametric"; there are aibrix, always-busiest, dynamo,`)
}

func TestWeightOfZeroIsAnError(t *testing.T) {
	_, err := endpick.New(preset.LoadPrefix(3, 0, 2))
	assert.ErrorIs(t, err, endpick.ErrConfig)
	assert.ErrorContains(t, err, "Policy.Scorers[1].Weight")
}

// byName is preset.ByName, but for a predictor that learns in its caller's
// goroutine and so always at the same moment.
func byName(name string) (endpick.Config, error) {
	if name == "predicted-latency" {
		return preset.PredictedLatency(preset.PredictedLatencyConfig{
			Latency: predict.LatencyConfig{Synchronous: true},
		})
	}
	return preset.ByName(name)
}

func TestPoliciesConform(t *testing.T) {
	for _, name := range preset.Names() {
		t.Run(name, func(t *testing.T) {
			scorertest.RunPolicy(t, func(t *testing.T) endpick.Policy {
				config, err := byName(name)
				require.NoError(t, err)
				return config.Policy
			})
		})
	}
}

// TestChoices puts every policy before the same three servers:
//
//	a: holds 60 % of the prompt, 12 running, 9,000 prompt tokens in prefill
//	b: holds nothing, 2 running
//	c: holds 20 %, 4 running and 3 waiting
//
// LMetric: a (400 + 9,000)·13, b 1,000·3, c 800·8: b. vLLM: a 12, b 2, c 16: b.
// Linear with 0.7: a 0.28 + 0.3, b 0.7 + 0.05, c 0.56 + 0.175: a. AIBrix: 12 − 2
// > 8: least loaded, b. SGLang: 12 − 2 ≤ 32 and 0.6 > 0.5: a. Preble: a. Dynamo
// in tokens: a 400 + 9,000 + context, b 1,000, c 800 + 0: c, of which this
// router knows no open request. Load-prefix 3,2,2: a (3·0.6 + 0 + 2·0.5)/7, b
// (0 + 2 + 2·0.5)/7, c (3·0.2 + 2·0.5 + 2·0.5)/7: b. Always-busiest: a.
func TestChoices(t *testing.T) {
	want := map[string]string{
		"lmetric": "b", "vllm": "b", "linear": "a", "aibrix": "b", "sglang": "a", "preble": "a",
		"dynamo": "c", "load-prefix-322": "b", "least-loaded": "b", "always-busiest": "a",
	}
	for name, id := range want {
		t.Run(name, func(t *testing.T) {
			config, err := preset.ByName(name)
			require.NoError(t, err)
			now := time.Unix(1, 0)
			config.Clock = func() time.Time { return now }
			config.Endpoints = []endpick.Endpoint{{ID: "a"}, {ID: "b"}, {ID: "c"}}
			r, err := endpick.New(config)
			require.NoError(t, err)

			blocks := prefix.AppendTokens(nil, 1, make([]uint32, 1008))
			others := func(id string) []string {
				var out []string
				for _, e := range []string{"a", "b", "c"} {
					if e != id {
						out = append(out, e)
					}
				}
				return out
			}
			remember := func(id string, tokens int) {
				l, err := r.Route(endpick.Request{InputTokens: tokens, Blocks: blocks[:tokens/16], Exclude: others(id)})
				require.NoError(t, err)
				l.FirstToken()
				l.Done(endpick.Outcome{})
			}
			remember("a", 608)
			remember("c", 208)
			// 9,000 tokens in prefill on a.
			_, err = r.Route(endpick.Request{InputTokens: 9000, Exclude: others("a")})
			require.NoError(t, err)
			report := func(id string, waiting, running float64) {
				require.NoError(t, r.Report(id, endpick.Load{Waiting: waiting, Running: running, KVUsage: 0.5}))
			}
			report("a", 0, 12)
			report("b", 0, 2)
			report("c", 3, 4)

			var receipt endpick.Receipt
			l, err := r.Route(endpick.Request{InputTokens: 1008, Blocks: blocks, Receipt: &receipt})
			require.NoError(t, err)
			assert.Equal(t, id, l.Endpoint().ID, "%v", &receipt)
		})
	}
}

func Example() {
	config := preset.LMetric()
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
