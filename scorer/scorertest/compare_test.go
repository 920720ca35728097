package scorertest_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/scorer/scorertest"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// writeRecording writes a gateway's recording of conversations that share system
// prompts, with about eight requests per second.
func writeRecording(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "day.jsonl")
	f := rig.Must(os.Create(path))
	defer f.Close()
	write, end := recording.NewWriter(f)
	random := rand.New(rand.NewPCG(1, 2))
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	prompts := make([][]recording.Hash, 40) // one per user
	for range 400 {
		at = at.Add(time.Duration(random.ExpFloat64() * float64(time.Second) / 8))
		user := random.IntN(len(prompts))
		if len(prompts[user]) == 0 || len(prompts[user]) > 600 {
			prompts[user] = nil
			for i := range 64 {
				prompts[user] = append(prompts[user], recording.Hash(1+user%4<<20+i))
			}
		}
		for range 20 + random.IntN(160) {
			prompts[user] = append(prompts[user], recording.Hash(random.Uint64()|1))
		}
		ttft := 200.0
		write(recording.Request{
			Time: at, TTFTMillis: &ttft, E2EMillis: 3000, Model: "m", Status: "completed", HTTP: 200, Attempts: 1, Stream: true,
			InputTokens: 16*len(prompts[user]) + 5, OutputTokens: 50 + random.IntN(200),
			Blocks: prompts[user], BlockTokens: 16, Tenant: recording.Hash(1 + user%4), SLOTTFTMillis: 250,
		})
	}
	require.NoError(t, end())
	return path
}

// custom is LMetric with another scorer.
func custom(name string, cost func(*endpick.Request, *endpick.Candidate) float64) endpick.Config {
	config := all.LMetric()
	config.Policy.Name = name
	config.Policy.Scorers = []endpick.Weighted{{Scorer: scorer.Cost(name, cost), Weight: 1}}
	return config
}

func TestCompareCustomScorer(t *testing.T) {
	w := scorertest.Workload{Recording: writeRecording(t), Endpoints: 4, Seed: 1}
	product := func(req *endpick.Request, c *endpick.Candidate) float64 {
		return float64(c.NewTokens(req)+c.InFlight.PrefillTokens) * (c.BatchSize() + 1)
	}
	hoarder := func(_ *endpick.Request, c *endpick.Candidate) float64 { return -float64(c.PrefixTokens) }
	reports := rig.Must(scorertest.Compare(w, all.LMetric(), custom("product", product), custom("hoarder", hoarder)))
	require.Len(t, reports, 3)
	lmetric, own, worst := reports[0], reports[1], reports[2]

	for _, r := range reports {
		assert.Equal(t, 400, r.Requests, r.Policy)
		assert.Equal(t, 400, r.Completed, r.Policy)
		assert.Equal(t, 400, r.WithSLO, r.Policy)
		assert.Positive(t, r.TPOT.Mean, r.Policy)
		assert.InDelta(t, 1, r.Jain, 0.3, r.Policy)
	}
	own.Policy = lmetric.Policy
	assert.Equal(t, lmetric, own, "LMetric in one's own words decides alike")
	assert.Equal(t, "hoarder", worst.Policy)
	assert.Greater(t, worst.TTFT.P95, 1.5*lmetric.TTFT.P95, "it sends everything to where the system prompt is")
	assert.Greater(t, worst.Imbalance, lmetric.Imbalance)
	assert.Less(t, worst.MetSLO, lmetric.MetSLO)

	w.RateScale = 2
	assert.Greater(t, rig.Must(scorertest.Compare(w, all.LMetric()))[0].Throughput, 1.5*lmetric.Throughput)
}

// Every field of a workload affects the result, and nothing else does.
func TestCompareHeedsTheWorkload(t *testing.T) {
	with := func(change func(*scorertest.Workload)) scorertest.Report {
		w := scorertest.Workload{Scenario: "C", Rate: 8, Requests: 200, Seed: 1}
		change(&w)
		return rig.Must(scorertest.Compare(w, rig.Must(all.ByName("load-prefix"))))[0]
	}
	plain := with(func(*scorertest.Workload) {})
	assert.Equal(t, plain, with(func(*scorertest.Workload) {}))
	for name, change := range map[string]func(*scorertest.Workload){
		"ReportInterval": func(w *scorertest.Workload) { w.ReportInterval = 10 * time.Second },
		"Seed":           func(w *scorertest.Workload) { w.Seed = 2 },
		"Rate":           func(w *scorertest.Workload) { w.Rate = 4 },
		"Requests":       func(w *scorertest.Workload) { w.Requests = 100 },
		"Endpoints":      func(w *scorertest.Workload) { w.Endpoints = 3 },
		"Profile":        func(w *scorertest.Workload) { w.Profile = "llama-3.1-8b-a100" },
	} {
		assert.NotEqual(t, plain, with(change), name)
	}
}

func TestCompareErrors(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.jsonl")
	require.NoError(t, os.WriteFile(broken, []byte(`{"time":"2026-01-02T03:04:05Z","e2e_ms":1,"input_tokens":-1,"output_tokens":1}`), 0o666))
	weightless := all.LMetric()
	weightless.Policy.Scorers[0].Weight = 0
	for name, c := range map[string]struct {
		w      scorertest.Workload
		config endpick.Config
		want   string
	}{
		"nothing":    {scorertest.Workload{}, endpick.Config{}, "scorertest.Workload needs a Scenario or a Recording, and not both"},
		"both":       {scorertest.Workload{Scenario: "A", Recording: writeRecording(t)}, endpick.Config{}, "scorertest.Workload needs a Scenario or a Recording, and not both"},
		"scenario":   {scorertest.Workload{Scenario: "E"}, endpick.Config{}, `"E" is unknown (known: A, B, C, D,`},
		"no rate":    {scorertest.Workload{Scenario: "A"}, endpick.Config{}, "endpick: config: scorertest.Workload.Rate is needed: the workload has no arrivals of its own"},
		"profile":    {scorertest.Workload{Scenario: "A", Rate: 1, Profile: "abacus"}, endpick.Config{}, `endpick: config: scorertest.Workload.Profile "abacus" is unknown (known: `},
		"recording":  {scorertest.Workload{Recording: broken}, endpick.Config{}, "scorertest: Workload.Recording: sim: broken.jsonl:1: input_tokens is negative"},
		"negative":   {scorertest.Workload{Scenario: "A", Rate: 1, Requests: -1}, endpick.Config{}, "endpick: config: scorertest.Workload.Requests -1"},
		"no reports": {scorertest.Workload{Scenario: "A", Rate: 1, ReportInterval: -1}, endpick.Config{}, "endpick: config: scorertest.Workload.ReportInterval is negative"},
		"no servers": {scorertest.Workload{Scenario: "A", Rate: 1, Endpoints: -1}, endpick.Config{}, "endpick: config: scorertest.Workload.Endpoints -1"},
		"config": {scorertest.Workload{Scenario: "A", Rate: 1, Requests: 1}, weightless,
			"scorertest: configs[0] (lmetric): endpick: config: "},
	} {
		assert.ErrorContains(t, rig.Err(scorertest.Compare(c.w, c.config)), c.want, name)
	}
	_, err := scorertest.Compare(scorertest.Workload{Scenario: "A", Rate: 1})
	assert.EqualError(t, err, "endpick: config: scorertest.Compare needs a config")

	used := all.LMetric()
	w := scorertest.Workload{Scenario: "A", Rate: 1, Requests: 2}
	reports := rig.Must(scorertest.Compare(w, used))
	assert.Regexp(t, `^lmetric: 2 of 2 requests completed, TTFT \d+ ms \(p90 \d+, p99 \d+\), TPOT \d+\.\d ms, `, reports[0].String())
	assert.ErrorAs(t, rig.Err(scorertest.Compare(w, used)), new(*endpick.ConfigError), "what it knows is of other endpoints")
}

// A policy that uses labels and variants gets those of the workload.
func TestCompareDescribesServers(t *testing.T) {
	w := scorertest.Workload{Scenario: "A", Rate: 1, Requests: 20, Endpoints: 3, Describe: func(server int) endpick.Endpoint {
		return endpick.Endpoint{Labels: map[string]string{"price": []string{"spot", "full", "full"}[server]}, Variant: []string{"h100", "a100", ""}[server]}
	}}
	var mu sync.Mutex
	seen := map[string]int{}
	spot := scorer.Cost("spot", func(_ *endpick.Request, c *endpick.Candidate) float64 {
		mu.Lock()
		defer mu.Unlock()
		seen[c.Endpoint.Labels["price"]+" "+c.Endpoint.Variant]++
		return 0
	})
	require.NoError(t, rig.Err(scorertest.Compare(w, endpick.Config{Policy: endpick.Policy{Scorers: []endpick.Weighted{{Scorer: spot, Weight: 1}}}})))
	assert.Len(t, seen, 3)
	assert.Equal(t, 20, seen["spot h100"])
	assert.Equal(t, 20, seen["full a100"])
}

func TestPoliciesConform(t *testing.T) {
	for name, p := range map[string]func() endpick.Policy{
		"zero": func() endpick.Policy { return endpick.Policy{} },
		"weighted": func() endpick.Policy {
			return endpick.Policy{
				Filters: []endpick.Filter{scorer.MatchGate(scorer.MatchGateConfig{Range: 8})},
				Scorers: []endpick.Weighted{{Scorer: scorer.NoHitLRU(), Weight: 1}, {Scorer: scorer.QueueDepth(), Weight: 2}},
				Picker:  endpick.WeightedRandom{},
			}
		},
		"power of two": func() endpick.Policy {
			return endpick.Policy{Scorers: []endpick.Weighted{{Scorer: scorer.LMetric(), Weight: 1}}, Picker: endpick.PowerOfTwo{}}
		},
	} {
		t.Run(name, func(t *testing.T) { scorertest.RunPolicy(t, func(*testing.T) endpick.Policy { return p() }) })
	}
}

// A scorer of your own, compared with LMetric. With Workload.Recording, a
// recording of your gateway replaces the scenario.
func ExampleCompare() {
	coldest := all.LMetric()
	coldest.Policy.Name = "coldest"
	coldest.Policy.Scorers = []endpick.Weighted{{
		Scorer: scorer.Cost("coldest", func(_ *endpick.Request, c *endpick.Candidate) float64 { return c.KVUsage }),
		Weight: 1,
	}}
	reports, err := scorertest.Compare(scorertest.Workload{Scenario: "C", Rate: 8, Requests: 500}, all.LMetric(), coldest)
	if err != nil {
		fmt.Println(err)
		return
	}
	lmetric, own := reports[0], reports[1]
	fmt.Println("all served:", own.Completed == own.Requests)
	fmt.Println("finds as much in caches:", own.PrefixHitRatio >= lmetric.PrefixHitRatio)
	fmt.Println("first token as soon:", own.TTFT.P50 <= lmetric.TTFT.P50)
	// Output:
	// all served: true
	// finds as much in caches: false
	// first token as soon: false
}
