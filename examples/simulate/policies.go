package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/slo"
)

// newPolicy makes the policy of this name with state of its own: a preset, linear:λ,
// Bailian's linear combination with a weight of one's own, or predicted-latency with
// variants, as predicted-latency:most:no-gate.
func newPolicy(name string) (endpick.Config, error) {
	_, parameter, parameterised := strings.Cut(name, ":")
	switch {
	case base(name) == "predicted-latency":
		return predictedLatency(name)
	case base(name) == "linear" && parameterised:
		lambda, err := strconv.ParseFloat(parameter, 64)
		if err != nil || !(lambda > 0 && lambda <= 1) {
			return endpick.Config{}, fmt.Errorf("policy %q: %q is no weight in (0, 1]", name, parameter)
		}
		return preset.Linear(lambda), nil
	}
	return preset.ByName(name)
}

// base is a policy's name without its parameter and variants.
func base(name string) string {
	name, _, _ = strings.Cut(name, ":")
	return name
}

// variant is a part of predicted-latency left out or replaced.
type variant struct {
	name  string
	apply func(*preset.PredictedLatencyConfig)
}

const noGate = "no-gate"

// variants are what may follow predicted-latency. The preset always has the gate: who
// wants none takes the filter out of its policy.
var variants = []variant{
	{noGate, func(*preset.PredictedLatencyConfig) {}},
	{"no-exploration", func(c *preset.PredictedLatencyConfig) {
		c.Affinity.DisableExploration, c.Tier.DisableExploration, c.BestFit.DisableExploration = true, true, true
	}},
	{"no-load-gate", func(c *preset.PredictedLatencyConfig) { c.Affinity.DisableLoadGate = true }},
	{"no-neighbours", func(c *preset.PredictedLatencyConfig) { c.DisableNeighbours = true }},
	{"no-spread", func(c *preset.PredictedLatencyConfig) { c.DisableSpread = true }},
	{"plain-window", func(c *preset.PredictedLatencyConfig) { c.Latency.DisableStrata = true }},
	{"most", func(c *preset.PredictedLatencyConfig) { c.BestFit.Strategy = slo.Most }},
	{"min-max", func(c *preset.PredictedLatencyConfig) { c.BestFit.Form = slo.MinMax }},
}

func predictedLatency(name string) (endpick.Config, error) {
	// Training in the background would make a run depend on the machine.
	c := preset.PredictedLatencyConfig{Latency: predict.LatencyConfig{Synchronous: true}}
	chosen := strings.Split(name, ":")[1:]
	for i, v := range chosen {
		at := slices.IndexFunc(variants, func(known variant) bool { return known.name == v })
		if at < 0 || slices.Contains(chosen[:i], v) {
			return endpick.Config{}, fmt.Errorf("policy %q: %q is no variant, or there twice (known: %s)", name, v, variantNames())
		}
		variants[at].apply(&c)
	}
	config, err := preset.PredictedLatency(c)
	if err == nil && slices.Contains(chosen, noGate) {
		config.Policy.Filters = slices.DeleteFunc(config.Policy.Filters, func(f endpick.Filter) bool {
			_, gate := f.(*prefix.Affinity)
			return gate
		})
	}
	return config, err
}

func variantNames() string {
	var names []string
	for _, v := range variants {
		names = append(names, v.name)
	}
	return strings.Join(names, ", ")
}

func readPolicy(name string) (string, error) {
	_, err := newPolicy(name)
	return name, err
}
