package all_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/scorer/scorertest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestByName(t *testing.T) {
	require.True(t, slices.IsSorted(all.Names()))
	for _, name := range append(all.Names(), "linear:0.5", "load-prefix:1:1:1", "load-prefix:0.5:2:1e3", "predicted-latency:paper:most", "marginal-delay:1") {
		config := rig.Must(all.ByName(name))
		assert.Equal(t, name, config.Policy.Name)
		assert.NoError(t, rig.Err(endpick.New(config)))
		assert.Contains(t, all.Usage(), strings.Split(name, ":")[0])
	}
	_, err := all.ByName("lametric")
	assert.ErrorContains(t, err, `policy "lametric" is unknown; there are aibrix, always-busiest, dynamo,`)
	for _, name := range []string{"lametric", "", "random:1", "linear:2"} {
		assert.ErrorAs(t, rig.Err(all.ByName(name)), new(*endpick.ConfigError), name)
	}
}

// The list in the package's documentation is Usage.
func TestNamesInTheDocumentation(t *testing.T) {
	doc, _, _ := strings.Cut(string(rig.Must(os.ReadFile("all.go"))), "\npackage all\n")
	words := strings.Fields(strings.ReplaceAll(doc, "//", ""))
	assert.Contains(t, strings.Join(words, " "), " "+all.Usage()+" ")
}

func TestParametersOfAName(t *testing.T) {
	policy := func(name string) endpick.Policy {
		return rig.Must(all.ByName(name)).Policy
	}
	assert.Equal(t, []endpick.Weighted{{Scorer: scorer.Linear(0), Weight: 1}}, policy("linear").Scorers)
	assert.Equal(t, []endpick.Weighted{{Scorer: scorer.Linear(0.25), Weight: 1}}, policy("linear:0.25").Scorers)
	weights := func(name string) (w []float64) {
		for _, s := range policy(name).Scorers {
			w = append(w, s.Weight)
		}
		return w
	}
	assert.Equal(t, []float64{3, 2, 2}, weights("load-prefix"))
	assert.Equal(t, []float64{1, 2, 3}, weights("load-prefix:1:2:3"))
	dial := func(name string) string {
		why := make([]string, 1)
		cs := []endpick.Candidate{{Endpoint: &endpick.Endpoint{ID: "a"}}}
		policy(name).Scorers[0].Scorer.(interface {
			Explain(*endpick.Request, []endpick.Candidate, []string)
		}).Explain(&endpick.Request{InputTokens: 10, Stream: true}, cs, why)
		return why[0]
	}
	assert.Contains(t, dial("marginal-delay:7.5"), "= w 7.5 · ")
	assert.Contains(t, dial("marginal-delay"), "= w 5 · ", "nothing is measured yet")
	fit := func(name string) string { return policy(name).Scorers[0].Scorer.(interface{ Name() string }).Name() }
	assert.Equal(t, "latency-least", fit("predicted-latency"))
	assert.Equal(t, "latency-most", fit("predicted-latency:most"))
	assert.Len(t, policy("predicted-latency").Filters, 3)
	assert.Len(t, policy("predicted-latency:paper").Filters, 2, "nothing is warmed up")

	for name, reason := range map[string]string{
		"lmetric:1":                     `has parameter "1", but the policy has none`,
		"linear:":                       `has parameter "", which is not a weight in (0, 1]`,
		"linear:0":                      `has parameter "0", which is not a weight in (0, 1]`,
		"linear:1.5":                    `has parameter "1.5", which is not a weight in (0, 1]`,
		"linear:NaN":                    `has parameter "NaN", which is not a weight in (0, 1]`,
		"linear:0.5:0.5":                `has 2 parameters, but the policy has one`,
		"load-prefix:1":                 `has 1 parameters, but the policy has three weights or none`,
		"load-prefix:1:0:1":             `has parameter "0", which is not a weight above zero`,
		"load-prefix:1:Inf:1":           `has parameter "Inf", which is not a weight above zero`,
		"marginal-delay:without-room":   `has parameter "without-room", which is not a weight above zero`,
		"marginal-delay:1:1":            `has 2 parameters, but the policy has one`,
		"predicted-latency:most:most":   `has "most" twice`,
		"predicted-latency:no-spread":   `has "no-spread", which is gone: use paper, which leaves out all that the paper does not have`,
		"predicted-latency:no-gate":     `has "no-gate", which is gone: use predicted-latency, with most, paper or none`,
		"predicted-latency:most:better": `has "better", which is not a variant; there are most, paper, synchronous`,
	} {
		assert.Equal(t, &endpick.ConfigError{Field: fmt.Sprintf("policy %q", name), Reason: reason}, rig.Err(all.ByName(name)))
	}
}

// The constants of the policies' authors.
func TestGates(t *testing.T) {
	for name, want := range map[string]scorer.MatchGateConfig{
		"aibrix": {Range: 8}, "preble": {Share: 0.5}, "sglang": {Share: 0.5, Range: 32, Ratio: 1.1},
	} {
		assert.Equal(t, scorer.MatchGate(want), rig.Must(all.ByName(name)).Policy.Filters[0], name)
	}
}

// byName is all.ByName with a synchronous predictor.
func byName(name string) (endpick.Config, error) {
	if name == "predicted-latency" {
		name += ":synchronous"
	}
	return all.ByName(name)
}

func TestPoliciesConform(t *testing.T) {
	for _, name := range all.Names() {
		t.Run(name, func(t *testing.T) {
			scorertest.RunPolicy(t, func(t *testing.T) endpick.Policy {
				return rig.Must(byName(name)).Policy
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
		assert.Contains(t, newStage(t, name).play(threeServers), "\n* "+id+" ", name)
	}
}

// A server that reports what it likes starves no other, even if that reports nothing.
func TestOneReportStarvesNobody(t *testing.T) {
	for _, name := range all.Names() {
		if name == "always-busiest" {
			continue
		}
		config, sent := rig.Must(all.ByName(name)), map[string]int{}
		config.Seed = 1
		for _, id := range []string{"liar", "honest", "candid", "silent", "closed"} {
			config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: id})
		}
		router := rig.Must(endpick.New(config))
		for _, id := range []string{"honest", "candid"} {
			require.NoError(t, router.Report(id, endpick.Load{}))
		}
		require.NoError(t, router.Report("liar", endpick.Load{Running: 1e9}))
		for i := range uint64(200) {
			sent[rig.Must(router.Route(endpick.Request{Blocks: []uint64{i}, Stream: true})).Endpoint().ID]++
		}
		delete(sent, "liar")
		require.Len(t, sent, 4, name)
		for id, n := range sent {
			require.Greater(t, n, 25, "%s: %s", name, id)
		}
	}
}

// What has been learned goes on to be used where it is of use.
func TestReuse(t *testing.T) {
	learned := rig.Must(all.ByName("predicted-latency"))
	for _, name := range []string{"predicted-latency", "predicted-latency:paper", "predicted-latency:synchronous"} {
		c := rig.Must(all.Reuse(name, learned.Policy))
		assert.Equal(t, name, c.Policy.Name)
		assert.Same(t, learned.Policy.Predictor, c.Policy.Predictor, name)
		assert.Same(t, learned.Policy.Matcher, c.Policy.Matcher, name)
	}
	c := rig.Must(all.Reuse("marginal-delay", learned.Policy))
	assert.Same(t, learned.Policy.Matcher, c.Policy.Matcher)
	assert.NotEqual(t, learned.Policy.Predictor, c.Policy.Predictor)
	c = rig.Must(all.Reuse("predicted-latency", endpick.Policy{}))
	assert.NotNil(t, c.Policy.Matcher, "there was none to take over")
	assert.NotNil(t, c.Policy.Predictor)
	assert.Nil(t, rig.Must(all.Reuse("random", learned.Policy)).Policy.Matcher, "nobody would ask it")
	assert.ErrorAs(t, rig.Err(all.Reuse("no such", learned.Policy)), new(*endpick.ConfigError))
}
