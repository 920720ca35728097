package preset

import (
	"fmt"
	"slices"
	"strings"

	"github.com/endpick/endpick"
)

// UnknownError says that no preset has this name.
type UnknownError struct{ Name string }

func (e *UnknownError) Error() string {
	return fmt.Sprintf("preset: unknown policy %q; there are %s", e.Name, strings.Join(Names(), ", "))
}

// ByName returns the preset of that name, as it stands in its policy's Name,
// for programs that take it from a flag. The error is an [UnknownError].
func ByName(name string) (endpick.Config, error) {
	switch name {
	case "random":
		return Random(), nil
	case "round-robin":
		return RoundRobin(), nil
	case "least-loaded":
		return LeastLoaded(), nil
	case "power-of-two":
		return PowerOfTwo(), nil
	case "always-busiest":
		return AlwaysBusiest(), nil
	case "vllm":
		return VLLM(), nil
	case "load-prefix-111":
		return LoadPrefix(1, 1, 1), nil
	case "load-prefix-322":
		return LoadPrefix(3, 2, 2), nil
	case "lmetric":
		return LMetric(), nil
	case "linear":
		return Linear(0), nil
	case "aibrix":
		return AIBrix(), nil
	case "dynamo":
		return Dynamo(), nil
	case "preble":
		return Preble(), nil
	case "sglang":
		return SGLang(), nil
	case "predicted-latency":
		return PredictedLatency(PredictedLatencyConfig{})
	}
	return endpick.Config{}, &UnknownError{Name: name}
}

// Names lists what ByName knows, in alphabetical order.
func Names() []string {
	names := []string{
		"random", "round-robin", "least-loaded", "power-of-two", "always-busiest", "vllm",
		"load-prefix-111", "load-prefix-322", "lmetric", "linear", "aibrix", "dynamo", "preble", "sglang", "predicted-latency",
	}
	slices.Sort(names)
	return names
}
