package all

import (
	"fmt"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer"
)

// Random picks any endpoint.
func Random() endpick.Config { return config("random", endpick.Policy{}) }

// RoundRobin takes the endpoints in turn.
func RoundRobin() endpick.Config {
	return config("round-robin", endpick.Policy{Scorers: one(&scorer.RoundRobin{})})
}

// LeastLoaded picks the endpoint with the fewest requests.
func LeastLoaded() endpick.Config {
	return config("least-loaded", endpick.Policy{Scorers: one(scorer.LeastLoaded{})})
}

// PowerOfTwo draws two endpoints and picks the less loaded of them.
func PowerOfTwo() endpick.Config {
	return config("power-of-two", endpick.Policy{Scorers: one(scorer.LeastLoaded{}), Picker: endpick.PowerOfTwo{}})
}

// AlwaysBusiest picks the endpoint with the most requests: the worst possible
// policy, for comparison.
func AlwaysBusiest() endpick.Config {
	busiest := func(_ *endpick.Request, c *endpick.Candidate) float64 { return -c.BatchSize() }
	return config("always-busiest", endpick.Policy{Scorers: one(scorer.Cost("always-busiest", busiest))})
}

// VLLM is the policy of vLLM's own router: the least 4·W + R (LMetric, figure
// 6a).
func VLLM() endpick.Config {
	load := func(_ *endpick.Request, c *endpick.Candidate) float64 { return 4*c.Waiting + c.Running }
	return config("vllm", endpick.Policy{Scorers: one(scorer.Cost("vllm", load))})
}

// LoadPrefix is the load- and prefix-aware policy of the Gateway API inference
// extension and llm-d: a weighted sum of prefix affinity, queue depth and KV
// utilization, 3 : 2 : 2 in the original and in ByName. A weight of zero makes
// [endpick.New] fail; take the scorer out of Policy.Scorers instead.
func LoadPrefix(prefixWeight, queueWeight, kvWeight float64) endpick.Config {
	return config(fmt.Sprintf("load-prefix:%v:%v:%v", prefixWeight, queueWeight, kvWeight), endpick.Policy{
		Matcher: index(),
		Scorers: []endpick.Weighted{
			{Scorer: scorer.PrefixAffinity{}, Weight: prefixWeight},
			{Scorer: scorer.QueueDepth{}, Weight: queueWeight},
			{Scorer: scorer.KVUsage{}, Weight: kvWeight},
		},
	})
}

// NoHitLRU is LoadPrefix with a fourth scorer of weight 2 for prompts that nobody
// holds: the endpoint that has had none of these for the longest time comes first, so
// that new prefixes spread (BLIS, "Scorer Composition").
func NoHitLRU() endpick.Config {
	c := LoadPrefix(3, 2, 2)
	c.Policy.Name = "no-hit-lru"
	c.Policy.Scorers = append(c.Policy.Scorers, endpick.Weighted{Scorer: &scorer.NoHitLRU{}, Weight: 2})
	return c
}

// LMetric picks the least (F + Q) × (BS + 1). It keeps no state but the index.
func LMetric() endpick.Config {
	return config("lmetric", endpick.Policy{Matcher: index(), Scorers: one(scorer.LMetric{})})
}

// Hotspot is LMetric behind its two-phase detector, which keeps a prefix that
// dominates the traffic from overloading the endpoints that hold it (LMetric, section
// 5.2).
func Hotspot() endpick.Config {
	return config("hotspot", endpick.Policy{
		Matcher: index(),
		Filters: []endpick.Filter{&scorer.Hotspot{}},
		Scorers: one(scorer.LMetric{}),
	})
}

// Linear is Bailian's linear combination with the weight lambda for the
// prefix; zero: 0.7.
func Linear(lambda float64) endpick.Config {
	name := "linear"
	if lambda != 0 {
		name = fmt.Sprintf("linear:%v", lambda)
	}
	return config(name, endpick.Policy{Matcher: index(), Scorers: one(scorer.Linear{Lambda: lambda})})
}

// AIBrix picks the longest match, the least loaded among equals; if batch
// sizes are more than 8 apart, the least loaded of all.
func AIBrix() endpick.Config {
	return gated("aibrix", scorer.MatchGate{Range: 8}, scorer.LeastLoaded{})
}

// Dynamo picks the least sum of prefill and resident context, in blocks.
func Dynamo() endpick.Config {
	return config("dynamo", endpick.Policy{Matcher: index(), Scorers: one(scorer.Dynamo{})})
}

// Preble picks the longest match if it is more than half of the prompt, and
// otherwise the endpoint with the least work: prompt tokens to prefill and
// tokens resident. (The original also weighs what would be evicted, which a
// router can't see.)
func Preble() endpick.Config {
	return gated("preble", scorer.MatchGate{Share: 0.5}, scorer.Dynamo{})
}

// SGLang is the cache-aware policy of SGLang's gateway: the longest match if
// it is more than half of the prompt, otherwise the least loaded; and the
// least loaded whenever batch sizes are more than 32 and a tenth apart.
func SGLang() endpick.Config {
	return gated("sglang", scorer.MatchGate{Share: 0.5, Range: 32, Ratio: 1.1}, scorer.LeastLoaded{})
}

func gated(name string, gate scorer.MatchGate, s endpick.Scorer) endpick.Config {
	return config(name, endpick.Policy{Matcher: index(), Filters: []endpick.Filter{gate}, Scorers: one(s)})
}

func config(name string, p endpick.Policy) endpick.Config {
	p.Name = name
	return endpick.Config{Policy: p}
}

// index is a prefix index of default size.
func index() *prefix.Index {
	x, err := prefix.NewIndex(prefix.IndexConfig{})
	if err != nil {
		panic(err) // the zero IndexConfig is valid
	}
	return x
}

func one(s endpick.Scorer) []endpick.Weighted { return []endpick.Weighted{{Scorer: s, Weight: 1}} }
