package sim

import (
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset"
)

// named returns the maker of a preset's router. Models are fitted where they are asked for: in the background it would
// depend on the machine what a decision knows.
func named(policy string) func() (endpick.Config, error) {
	if strings.HasPrefix(policy, "predicted-latency") && !strings.Contains(policy, ":synchronous") {
		policy += ":synchronous"
	}
	return func() (endpick.Config, error) { return preset.ByName(policy) }
}
