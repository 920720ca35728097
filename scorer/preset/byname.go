package preset

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo"
	"github.com/endpick/endpick/slo/delay"
)

// named is a preset that programs can ask for by name. Parameters follow the
// name, each after a colon, because commas separate the names in lists.
type named struct {
	name       string
	parameters string // as Usage shows them; empty: none
	build      func(parameters []string) (endpick.Config, error)
}

// table lists all presets, sorted by name.
func table() []named {
	return []named{
		{"aibrix", "", plain(AIBrix)},
		{"always-busiest", "", plain(AlwaysBusiest)},
		{"dynamo", "", plain(Dynamo)},
		{"least-loaded", "", plain(LeastLoaded)},
		{"linear", "[:LAMBDA]", buildLinear},
		{"lmetric", "", plain(LMetric)},
		{"load-prefix", "[:PREFIX:QUEUE:KV]", buildLoadPrefix},
		{"marginal-delay", "[:without-TERM]...", buildMarginalDelay},
		{"power-of-two", "", plain(PowerOfTwo)},
		{"preble", "", plain(Preble)},
		{"predicted-latency", "[:VARIANT]...", buildPredictedLatency},
		{"random", "", plain(Random)},
		{"round-robin", "", plain(RoundRobin)},
		{"sglang", "", plain(SGLang)},
		{"vllm", "", plain(VLLM)},
	}
}

// UnknownError says that no preset has this name. It matches [endpick.ErrConfig].
type UnknownError struct{ Name string }

func (e *UnknownError) Error() string {
	return fmt.Sprintf("preset: unknown policy %q; there are %s", e.Name, strings.Join(Names(), ", "))
}

// Unwrap returns [endpick.ErrConfig].
func (e *UnknownError) Unwrap() error { return endpick.ErrConfig }

// ByName returns the preset of that name, for programs that take it from a flag.
// The name may be followed by parameters, as in linear:0.5, load-prefix:3:2:2 and
// predicted-latency:no-gate:most; [Usage] lists them. The policy's Name is the
// name as given.
//
// The error is an [UnknownError], or an [endpick.ConfigError] for a parameter that
// the preset does not have.
func ByName(name string) (endpick.Config, error) {
	parts := strings.Split(name, ":")
	all := table()
	i := slices.IndexFunc(all, func(n named) bool { return n.name == parts[0] })
	if i < 0 {
		return endpick.Config{}, &UnknownError{Name: name}
	}
	c, err := all[i].build(parts[1:])
	if err != nil {
		return endpick.Config{}, &endpick.ConfigError{Field: fmt.Sprintf("policy %q", name), Reason: err.Error()}
	}
	c.Policy.Name = name
	return c, nil
}

// Names lists the names that [ByName] accepts, without parameters, sorted.
func Names() []string {
	var names []string
	for _, n := range table() {
		names = append(names, n.name)
	}
	return names
}

// Usage lists the names that [ByName] accepts, with the parameters in brackets,
// for a program's help.
func Usage() string {
	var all []string
	for _, n := range table() {
		all = append(all, n.name+n.parameters)
	}
	return strings.Join(all, ", ") + "; variants are " + strings.Join(variantNames(), ", ") +
		", terms " + strings.Join(delay.TermNames(), ", ")
}

// plain wraps a preset without parameters.
func plain(build func() endpick.Config) func([]string) (endpick.Config, error) {
	return func(parameters []string) (endpick.Config, error) {
		if len(parameters) > 0 {
			return endpick.Config{}, fmt.Errorf("has parameter %q, but the policy has none", parameters[0])
		}
		return build(), nil
	}
}

func buildLinear(parameters []string) (endpick.Config, error) {
	switch len(parameters) {
	case 0:
		return Linear(0), nil
	case 1:
		lambda, err := weight(parameters[0])
		if err != nil || lambda > 1 {
			return endpick.Config{}, fmt.Errorf("has parameter %q, which is not a weight in (0, 1]", parameters[0])
		}
		return Linear(lambda), nil
	}
	return endpick.Config{}, fmt.Errorf("has %d parameters, but the policy has one", len(parameters))
}

func buildLoadPrefix(parameters []string) (endpick.Config, error) {
	switch len(parameters) {
	case 0:
		return LoadPrefix(3, 2, 2), nil
	case 3:
		var w [3]float64
		for i, p := range parameters {
			var err error
			if w[i], err = weight(p); err != nil {
				return endpick.Config{}, err
			}
		}
		return LoadPrefix(w[0], w[1], w[2]), nil
	}
	return endpick.Config{}, fmt.Errorf("has %d parameters, but the policy has three weights or none", len(parameters))
}

// weight parses a number above zero.
func weight(s string) (float64, error) {
	w, err := strconv.ParseFloat(s, 64)
	if err != nil || !(w > 0) || math.IsInf(w, 1) {
		return 0, fmt.Errorf("has parameter %q, which is not a weight above zero", s)
	}
	return w, nil
}

// variants are parameters that leave out or replace a part of predicted-latency.
var variants = []struct {
	name  string
	apply func(*PredictedLatencyConfig)
}{
	{"fixed-gate", func(c *PredictedLatencyConfig) { c.FixedGate = true }},
	{"min-max", func(c *PredictedLatencyConfig) { c.BestFit.Form = slo.MinMax }},
	{"most", func(c *PredictedLatencyConfig) { c.BestFit.Strategy = slo.Most }},
	{"no-claims", func(c *PredictedLatencyConfig) { c.DisableClaims = true }},
	{"no-exploration", func(c *PredictedLatencyConfig) {
		c.Affinity.DisableExploration, c.Tier.DisableExploration, c.BestFit.DisableExploration = true, true, true
	}},
	{"no-gate", func(c *PredictedLatencyConfig) { c.DisableGate = true }},
	{"no-load-gate", func(c *PredictedLatencyConfig) { c.Affinity.DisableLoadGate = true }},
	{"no-neighbours", func(c *PredictedLatencyConfig) { c.DisableNeighbours = true }},
	{"no-running", func(c *PredictedLatencyConfig) { c.Headroom.DisableRunning = true }},
	{"no-spread", func(c *PredictedLatencyConfig) { c.DisableSpread = true }},
	{"no-warmup", func(c *PredictedLatencyConfig) { c.DisableWarmup = true }},
	{"plain-window", func(c *PredictedLatencyConfig) { c.Latency.DisableStrata = true }},
	{"synchronous", func(c *PredictedLatencyConfig) { c.Latency.Synchronous = true }},
}

func buildPredictedLatency(parameters []string) (endpick.Config, error) {
	c, err := predictedLatency(parameters)
	if err != nil {
		return endpick.Config{}, err
	}
	return PredictedLatency(c)
}

func predictedLatency(parameters []string) (c PredictedLatencyConfig, err error) {
	for i, p := range parameters {
		at := slices.Index(variantNames(), p)
		if at < 0 || slices.Contains(parameters[:i], p) {
			return c, fmt.Errorf("has %q, which is not a variant, or given twice; the variants are %s", p, strings.Join(variantNames(), ", "))
		}
		variants[at].apply(&c)
	}
	return c, nil
}

// without begins a parameter of marginal-delay; the term to leave out follows.
const without = "without-"

// buildMarginalDelay leaves out the terms named by the parameters.
func buildMarginalDelay(parameters []string) (endpick.Config, error) {
	var c MarginalDelayConfig
	for _, p := range parameters {
		name, ok := strings.CutPrefix(p, without)
		term, known := delay.TermByName(name)
		if !ok || !known || c.Delay.Without&term != 0 {
			return endpick.Config{}, fmt.Errorf("has %q, which can't be left out, or is given twice; there are %s%s", p, without, strings.Join(delay.TermNames(), ", "+without))
		}
		c.Delay.Without |= term
	}
	return MarginalDelay(c)
}

func variantNames() (names []string) {
	for _, v := range variants {
		names = append(names, v.name)
	}
	return names
}
