package all

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer"
)

// random picks any endpoint.
func random() endpick.Policy { return endpick.Policy{} }

// roundRobin takes the endpoints in turn.
func roundRobin() endpick.Policy { return endpick.Policy{Scorers: one(scorer.RoundRobin())} }

// leastLoaded picks the endpoint with the fewest requests.
func leastLoaded() endpick.Policy { return endpick.Policy{Scorers: one(scorer.LeastLoaded())} }

// powerOfTwo draws two endpoints and picks the less loaded of them.
func powerOfTwo() endpick.Policy {
	return endpick.Policy{Scorers: one(scorer.LeastLoaded()), Picker: endpick.PowerOfTwo{}}
}

// alwaysBusiest picks the endpoint with the most requests: the worst possible
// policy, for comparison.
func alwaysBusiest() endpick.Policy {
	busiest := func(_ *endpick.Request, c *endpick.Candidate) float64 { return -c.BatchSize() }
	return endpick.Policy{Scorers: one(scorer.Cost("always-busiest", busiest))}
}

// vllm is the policy of vLLM's own router: the least 4·W + R (LMetric, figure
// 6a).
func vllm() endpick.Policy {
	load := func(_ *endpick.Request, c *endpick.Candidate) float64 { return 4*c.Waiting + c.Running }
	return endpick.Policy{Scorers: one(scorer.Cost("vllm", load))}
}

// loadPrefix is the load- and prefix-aware policy of the Gateway API inference
// extension and llm-d: a weighted sum of prefix affinity, queue depth and KV
// utilization, 3 : 2 : 2 in the original.
func loadPrefix(prefixWeight, queueWeight, kvWeight float64) endpick.Policy {
	return endpick.Policy{
		Matcher: index(),
		Scorers: []endpick.Weighted{
			{Scorer: scorer.PrefixAffinity(), Weight: prefixWeight},
			{Scorer: scorer.QueueDepth(), Weight: queueWeight},
			{Scorer: scorer.KVUsage(), Weight: kvWeight},
		},
	}
}

// noHitLRU is loadPrefix with a fourth scorer of weight 2 for prompts that nobody
// holds: the endpoint that has had none of these for the longest time comes first, so
// that new prefixes spread (BLIS, "Scorer Composition").
func noHitLRU() endpick.Policy {
	p := loadPrefix(3, 2, 2)
	p.Scorers = append(p.Scorers, endpick.Weighted{Scorer: scorer.NoHitLRU(), Weight: 2})
	return p
}

// LMetric picks the least (F + Q) × (BS + 1). It keeps no state but the index.
func LMetric() endpick.Config {
	return endpick.Config{Policy: endpick.Policy{Name: "lmetric", Matcher: index(), Scorers: one(scorer.LMetric())}}
}

// hotspot is LMetric behind its two-phase detector, which keeps a prefix that
// dominates the traffic from overloading the endpoints that hold it (LMetric, section
// 5.2).
func hotspot() endpick.Policy {
	return endpick.Policy{
		Matcher: index(),
		Filters: []endpick.Filter{scorer.Hotspot(scorer.HotspotConfig{})},
		Scorers: one(scorer.LMetric()),
	}
}

// linear is Bailian's linear combination with the weight lambda for the
// prefix; zero: 0.7.
func linear(lambda float64) endpick.Policy {
	return endpick.Policy{Matcher: index(), Scorers: one(scorer.Linear(lambda))}
}

// aibrix picks the longest match, the least loaded among equals; if batch
// sizes are more than 8 apart, the least loaded of all.
func aibrix() endpick.Policy { return gated(scorer.MatchGateConfig{Range: 8}, scorer.LeastLoaded()) }

// dynamo picks the least sum of prefill and resident context, in blocks.
func dynamo() endpick.Policy { return endpick.Policy{Matcher: index(), Scorers: one(scorer.Dynamo(0))} }

// preble picks the longest match if it is more than half of the prompt, and
// otherwise the endpoint with the least work: prompt tokens to prefill and
// tokens resident. (The original also weighs what would be evicted, which a
// router can't see.)
func preble() endpick.Policy { return gated(scorer.MatchGateConfig{Share: 0.5}, scorer.Dynamo(0)) }

// sglang is the cache-aware policy of SGLang's gateway: the longest match if
// it is more than half of the prompt, otherwise the least loaded; and the
// least loaded whenever batch sizes are more than 32 and a tenth apart.
func sglang() endpick.Policy {
	return gated(scorer.MatchGateConfig{Share: 0.5, Range: 32, Ratio: 1.1}, scorer.LeastLoaded())
}

func gated(gate scorer.MatchGateConfig, s endpick.Scorer) endpick.Policy {
	return endpick.Policy{Matcher: index(), Filters: []endpick.Filter{scorer.MatchGate(gate)}, Scorers: one(s)}
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
