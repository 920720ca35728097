package preset_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/scorer/scorertest"
)

func TestByName(t *testing.T) {
	require.True(t, slices.IsSorted(preset.Names()))
	for _, name := range append(preset.Names(), "linear:0.5", "load-prefix:1:1:1", "load-prefix:0.5:2:1e3", "predicted-latency:no-gate:most", "marginal-delay:without-room:without-pace") {
		config, err := preset.ByName(name)
		require.NoError(t, err)
		assert.Equal(t, name, config.Policy.Name)
		_, err = endpick.New(config)
		assert.NoError(t, err)
		assert.Contains(t, preset.Usage(), strings.Split(name, ":")[0])
	}
	_, err := preset.ByName("lametric")
	var unknown *preset.UnknownError
	require.ErrorAs(t, err, &unknown)
	assert.Equal(t, "lametric", unknown.Name)
	assert.ErrorContains(t, err, `unknown policy "lametric"; there are aibrix, always-busiest, dynamo,`)
	for _, name := range []string{"lametric", "", "random:1", "linear:2"} {
		_, err := preset.ByName(name)
		assert.ErrorIs(t, err, endpick.ErrConfig, name)
	}
}

// TestNamesInTheDocumentation compares the list in the package's documentation with Usage.
func TestNamesInTheDocumentation(t *testing.T) {
	source, err := os.ReadFile("preset.go")
	require.NoError(t, err)
	doc, _, _ := strings.Cut(string(source), "\npackage preset\n")
	words := strings.Fields(strings.ReplaceAll(doc, "//", ""))
	assert.Contains(t, strings.Join(words, " "), " "+preset.Usage()+" ")
}

func TestParametersOfAName(t *testing.T) {
	scorers := func(name string) []endpick.Weighted {
		c, err := preset.ByName(name)
		require.NoError(t, err)
		return c.Policy.Scorers
	}
	assert.Equal(t, []endpick.Weighted{{Scorer: scorer.Linear{}, Weight: 1}}, scorers("linear"))
	assert.Equal(t, []endpick.Weighted{{Scorer: scorer.Linear{Lambda: 0.25}, Weight: 1}}, scorers("linear:0.25"))
	assert.Equal(t, preset.LoadPrefix(3, 2, 2).Policy.Scorers, scorers("load-prefix"))
	assert.Equal(t, preset.LoadPrefix(1, 2, 3).Policy.Scorers, scorers("load-prefix:1:2:3"))
	for _, c := range []endpick.Config{preset.Linear(0), preset.Linear(0.5), preset.LoadPrefix(1, 0.5, 2)} {
		same, err := preset.ByName(c.Policy.Name)
		require.NoError(t, err, "the name of a config makes it again")
		assert.Equal(t, c.Policy.Name, same.Policy.Name)
		assert.Equal(t, c.Policy.Scorers, same.Policy.Scorers)
	}
	filters := func(name string) (names []string) {
		c, err := preset.ByName(name)
		require.NoError(t, err)
		for _, f := range c.Policy.Filters {
			names = append(names, f.(interface{ Name() string }).Name())
		}
		return names
	}
	all := filters("predicted-latency")
	without := filters("predicted-latency:no-gate")
	assert.Len(t, all, 3)
	assert.Equal(t, []string{all[0], all[2]}, without)

	for name, reason := range map[string]string{
		"lmetric:1":                   `has parameter "1", but the policy has none`,
		"linear:":                     `has parameter "", which is not a weight in (0, 1]`,
		"linear:0":                    `has parameter "0", which is not a weight in (0, 1]`,
		"linear:1.5":                  `has parameter "1.5", which is not a weight in (0, 1]`,
		"linear:NaN":                  `has parameter "NaN", which is not a weight in (0, 1]`,
		"linear:0.5:0.5":              `has 2 parameters, but the policy has one`,
		"load-prefix:1":               `has 1 parameters, but the policy has three weights or none`,
		"load-prefix:1:0:1":           `has parameter "0", which is not a weight above zero`,
		"load-prefix:1:Inf:1":         `has parameter "Inf", which is not a weight above zero`,
		"predicted-latency:most:most": `has "most", which is not a variant, or given twice; the variants are fixed-gate, min-max, most,`,
		"marginal-delay:room":         `has "room", which can't be left out, or is given twice; there are without-weight, without-horizon,`,
		"marginal-delay:without-room:without-room": `has "without-room", which can't be left out, or is given twice`,
		"predicted-latency:better":                 `has "better", which is not a variant`,
		"predicted-latency:no-gate:better":         `has "better", which is not a variant`,
	} {
		_, err := preset.ByName(name)
		var bad *endpick.ConfigError
		require.ErrorAs(t, err, &bad, name)
		assert.Equal(t, fmt.Sprintf("policy %q", name), bad.Field)
		assert.ErrorContains(t, err, reason)
	}
}

func TestWeightOfZeroIsAnError(t *testing.T) {
	_, err := endpick.New(preset.LoadPrefix(3, 0, 2))
	assert.ErrorIs(t, err, endpick.ErrConfig)
	assert.ErrorContains(t, err, "Policy.Scorers[1].Weight")
}

// byName is preset.ByName with a synchronous predictor.
func byName(name string) (endpick.Config, error) {
	if name == "predicted-latency" {
		name += ":synchronous"
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

// TestChoices gives every policy the same three servers:
//
//	a: holds 60 % of the prompt, 12 running, 9,000 prompt tokens in prefill
//	b: holds nothing, 2 running
//	c: holds 20 %, 4 running and 3 waiting
//
// LMetric: a (400 + 9,000)·13, b 1,000·3, c 800·8: b. vLLM: a 12, b 2, c 16: b.
// Linear with 0.7: a 0.28 + 0.3, b 0.7 + 0.05, c 0.56 + 0.175: a. AIBrix: 12 − 2
// > 8: least loaded, b. SGLang: 12 − 2 ≤ 32 and 0.6 > 0.5: a. Preble: a. Dynamo
// in tokens: a 400 + 9,000 + context, b 1,000, c 800 + 0: c, of which this
// router knows no open request. Load-prefix 3,2,2: a (3·0.6 + 0 + 2·0.5)/7, b (0
// + 2 + 2·0.5)/7, c (3·0.2 + 2·0.5 + 2·0.5)/7: b. Always-busiest: a.
func TestChoices(t *testing.T) {
	want := map[string]string{
		"lmetric": "b", "vllm": "b", "linear": "a", "aibrix": "b", "sglang": "a", "preble": "a",
		"dynamo": "c", "load-prefix": "b", "least-loaded": "b", "always-busiest": "a",
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

			blocks := prefix.AppendTokens(nil, prefix.Seed{}, make([]uint32, 1008))
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
