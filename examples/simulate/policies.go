package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/scorer/preset"
)

// newPolicy makes the policy of this name with state of its own: a preset, or
// linear:λ, Bailian's linear combination with a weight of one's own.
func newPolicy(name string) (endpick.Config, error) {
	if name == "predicted-latency" {
		// Training in the background would make a run depend on the machine.
		return preset.PredictedLatency(preset.PredictedLatencyConfig{
			Latency: predict.LatencyConfig{Trainer: predict.TrainerConfig{Synchronous: true}},
		})
	}
	parameter, ok := strings.CutPrefix(name, "linear:")
	if !ok {
		return preset.ByName(name)
	}
	lambda, err := strconv.ParseFloat(parameter, 64)
	if err != nil || !(lambda > 0 && lambda <= 1) {
		return endpick.Config{}, fmt.Errorf("policy %q: %q is no weight in (0, 1]", name, parameter)
	}
	return preset.Linear(lambda), nil
}

func readPolicy(name string) (string, error) {
	_, err := newPolicy(name)
	return name, err
}
