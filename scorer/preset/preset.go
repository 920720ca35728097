// Package preset has ready-made policies by name, each as an [endpick.Config] to
// which the caller adds endpoints, and whatever else should differ, before
// [endpick.New]:
//
//	config := preset.Default()
//	config.Endpoints = endpoints
//	router, err := endpick.New(config)
//
// Every call makes a Config with state of its own: a Config is for one router.
// Each preset has a story in testdata that explains, with real decisions, what
// it looks at and where it sends which request.
//
// [endpick.Router.SetPolicy] takes the Policy of another preset while the router
// runs; [Keep] makes one that keeps the prefix index and what has been learned.
//
// # Names
//
// [ByName] knows all of them by name. What is in brackets may be left out:
//
//	aibrix, always-busiest, dynamo, least-loaded, linear[:LAMBDA], lmetric,
//	load-prefix[:PREFIX:QUEUE:KV], marginal-delay[:without-TERM]...,
//	power-of-two, preble, predicted-latency[:VARIANT]..., random, round-robin,
//	sglang, vllm; variants are fixed-gate, min-max, most, no-claims,
//	no-exploration, no-gate, no-load-gate, no-neighbours, no-running,
//	no-spread, no-warmup, plain-window, synchronous, terms weight,
//	horizon, prefill, worth, crowding, slowdown, room, pace, copies
//
// LAMBDA is in (0, 1]; PREFIX, QUEUE and KV are weights above zero. Variants set
// fields of [PredictedLatencyConfig]; terms are those of [delay.Terms].
package preset

import (
	"fmt"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer"
)

// Default is [MarginalDelay] with its defaults, for callers who don't want to choose
// a policy. For one that learns nothing, use [LMetric].
func Default() endpick.Config {
	c, err := MarginalDelay(MarginalDelayConfig{})
	if err != nil {
		panic(err) // the zero MarginalDelayConfig is valid
	}
	return c
}

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

// LMetric picks the least (F + Q) × (BS + 1). It keeps no state but the index.
func LMetric() endpick.Config {
	return config("lmetric", endpick.Policy{Matcher: index(), Scorers: one(scorer.LMetric{})})
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
	return config("aibrix", endpick.Policy{
		Matcher: index(),
		Filters: []endpick.Filter{scorer.MatchGate{Range: 8}},
		Scorers: one(scorer.LeastLoaded{}),
	})
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
	return config("preble", endpick.Policy{
		Matcher: index(),
		Filters: []endpick.Filter{scorer.MatchGate{Share: 0.5}},
		Scorers: one(scorer.Dynamo{}),
	})
}

// SGLang is the cache-aware policy of SGLang's gateway: the longest match if
// it is more than half of the prompt, otherwise the least loaded; and the
// least loaded whenever batch sizes are more than 32 and a tenth apart.
func SGLang() endpick.Config {
	return config("sglang", endpick.Policy{
		Matcher: index(),
		Filters: []endpick.Filter{scorer.MatchGate{Share: 0.5, Range: 32, Ratio: 1.1}},
		Scorers: one(scorer.LeastLoaded{}),
	})
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
