package sim

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset"
)

// named returns the maker of a preset's router.
func named(policy string) func() (endpick.Config, error) {
	return func() (endpick.Config, error) { return preset.ByName(policy) }
}
