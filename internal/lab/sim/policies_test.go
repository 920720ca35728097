package sim

import (
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset/all"
)

// named returns the maker of a preset's router. Models are fitted synchronously: in the background,
// decisions would depend on the machine.
func named(policy string) func() (endpick.Config, error) {
	if strings.HasPrefix(policy, "predicted-latency") && !strings.Contains(policy, ":synchronous") {
		policy += ":synchronous"
	}
	return func() (endpick.Config, error) { return all.ByName(policy) }
}
