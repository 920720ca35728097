// Package all has every policy by name, each as an [endpick.Config]: the default of package
// preset, the baselines of the literature, and the learned policy of predicted latencies.
// Every call makes a Config with state of its own: a Config is for one router. Each policy has
// a story in testdata that explains, with real decisions, what it looks at and where it sends
// which request.
//
// [endpick.Router.SetPolicy] takes the Policy of another Config while the router runs; [Reuse]
// makes one with the running policy's prefix index and what it has learned.
//
// # Names
//
// [ByName] knows all of them by name. What is in brackets may be left out:
//
//	aibrix, always-busiest, dynamo, hotspot, least-loaded, linear[:LAMBDA],
//	lmetric, load-prefix[:PREFIX:QUEUE:KV], marginal-delay[:FIRSTTOKENWEIGHT],
//	no-hit-lru, power-of-two, preble,
//	predicted-latency[:most][:paper][:synchronous], random, round-robin, sglang, vllm
//
// LAMBDA is in (0, 1]; PREFIX, QUEUE, KV and FIRSTTOKENWEIGHT, which is
// delay.Config.FirstTokenWeight, are weights above zero. The variants of predicted-latency are slo.BestFitConfig.MostHeadroom, PredictedLatencyConfig.Paper
// and predict.LatencyConfig.Synchronous.
package all

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset"
)

// named is a policy that programs can ask for by name. Parameters follow the
// name, each after a colon, because commas separate the names in lists.
type named struct {
	name       string
	parameters string // as Usage shows them; empty: none
	build      func(parameters []string) (endpick.Policy, error)
}

// table lists all policies, sorted by name.
func table() []named {
	return []named{
		{"aibrix", "", plain(aibrix)},
		{"always-busiest", "", plain(alwaysBusiest)},
		{"dynamo", "", plain(dynamo)},
		{"hotspot", "", plain(hotspot)},
		{"least-loaded", "", plain(leastLoaded)},
		{"linear", "[:LAMBDA]", buildLinear},
		{"lmetric", "", plain(func() endpick.Policy { return LMetric().Policy })},
		{"load-prefix", "[:PREFIX:QUEUE:KV]", buildLoadPrefix},
		{"marginal-delay", "[:FIRSTTOKENWEIGHT]", buildMarginalDelay},
		{"no-hit-lru", "", plain(noHitLRU)},
		{"power-of-two", "", plain(powerOfTwo)},
		{"preble", "", plain(preble)},
		{"predicted-latency", "[:most][:paper][:synchronous]", buildPredictedLatency},
		{"random", "", plain(random)},
		{"round-robin", "", plain(roundRobin)},
		{"sglang", "", plain(sglang)},
		{"vllm", "", plain(vllm)},
	}
}

// ByName returns the policy of that name, for programs that take it from a flag.
// The name may be followed by parameters, as in linear:0.5, load-prefix:3:2:2 and
// predicted-latency:most; [Usage] lists them. The policy's Name is the name as given.
//
// The error is an [endpick.ConfigError], also for a parameter that the policy
// does not have.
func ByName(name string) (endpick.Config, error) {
	parts := strings.Split(name, ":")
	for _, n := range table() {
		if n.name != parts[0] {
			continue
		}
		p, err := n.build(parts[1:])
		if err != nil {
			return endpick.Config{}, &endpick.ConfigError{Field: fmt.Sprintf("policy %q", name), Reason: err.Error()}
		}
		p.Name = name
		return endpick.Config{Policy: p}, nil
	}
	return endpick.Config{}, &endpick.ConfigError{
		Field: fmt.Sprintf("policy %q", name), Reason: "is unknown; there are " + strings.Join(Names(), ", "),
	}
}

// Names lists the names that [ByName] accepts, without parameters, sorted.
func Names() (names []string) {
	for _, n := range table() {
		names = append(names, n.name)
	}
	return names
}

// Usage lists the names that [ByName] accepts, with the parameters in brackets,
// for a program's help.
func Usage() string {
	var usage []string
	for _, n := range table() {
		usage = append(usage, n.name+n.parameters)
	}
	return strings.Join(usage, ", ")
}

// plain wraps a policy without parameters.
func plain(build func() endpick.Policy) func([]string) (endpick.Policy, error) {
	return func(parameters []string) (endpick.Policy, error) {
		if len(parameters) > 0 {
			return endpick.Policy{}, fmt.Errorf("has parameter %q, but the policy has none", parameters[0])
		}
		return build(), nil
	}
}

func buildLinear(parameters []string) (endpick.Policy, error) {
	switch len(parameters) {
	case 0:
		return linear(0), nil
	case 1:
		lambda, err := weight(parameters[0])
		if err != nil || lambda > 1 {
			return endpick.Policy{}, fmt.Errorf("has parameter %q, which is not a weight in (0, 1]", parameters[0])
		}
		return linear(lambda), nil
	}
	return endpick.Policy{}, fmt.Errorf("has %d parameters, but the policy has one", len(parameters))
}

func buildLoadPrefix(parameters []string) (endpick.Policy, error) {
	switch len(parameters) {
	case 0:
		return loadPrefix(3, 2, 2), nil
	case 3:
		var w [3]float64
		for i, p := range parameters {
			var err error
			if w[i], err = weight(p); err != nil {
				return endpick.Policy{}, err
			}
		}
		return loadPrefix(w[0], w[1], w[2]), nil
	}
	return endpick.Policy{}, fmt.Errorf("has %d parameters, but the policy has three weights or none", len(parameters))
}

// weight parses a number above zero.
func weight(s string) (float64, error) {
	w, err := strconv.ParseFloat(s, 64)
	if err != nil || !(w > 0) || math.IsInf(w, 1) {
		return 0, fmt.Errorf("has parameter %q, which is not a weight above zero", s)
	}
	return w, nil
}

func buildMarginalDelay(parameters []string) (endpick.Policy, error) {
	var c preset.MarginalDelayConfig
	switch len(parameters) {
	case 0:
	case 1:
		w, err := weight(parameters[0])
		if err != nil {
			return endpick.Policy{}, err
		}
		c.Delay.FirstTokenWeight = w
	default:
		return endpick.Policy{}, fmt.Errorf("has %d parameters, but the policy has one", len(parameters))
	}
	config, err := preset.MarginalDelay(c)
	return config.Policy, err
}

func buildPredictedLatency(parameters []string) (endpick.Policy, error) {
	var c PredictedLatencyConfig
	for i, p := range parameters {
		if slices.Contains(parameters[:i], p) {
			return endpick.Policy{}, fmt.Errorf("has %q twice", p)
		}
		switch p {
		case "most":
			c.BestFit.MostHeadroom = true
		case "paper":
			c.Paper = true
		case "synchronous":
			c.Latency.Synchronous = true
		case "fixed-gate", "no-neighbours", "no-running", "no-spread", "no-warmup":
			return endpick.Policy{}, fmt.Errorf("has %q, which is gone: use paper, which leaves out all that the paper does not have", p)
		case "min-max", "no-claims", "no-exploration", "no-gate", "no-load-gate", "no-shortlist", "plain-window":
			return endpick.Policy{}, fmt.Errorf("has %q, which is gone: use predicted-latency, with most, paper or none", p)
		default:
			return endpick.Policy{}, fmt.Errorf("has %q, which is not a variant; there are most, paper, synchronous", p)
		}
	}
	config, err := PredictedLatency(c)
	return config.Policy, err
}
