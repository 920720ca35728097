package slo

import (
	"fmt"

	"github.com/endpick/endpick"
)

// share sets a probability or weight that was left at zero to its default, and
// checks it.
func share(field string, v *float64, zero float64) error {
	if *v == 0 {
		*v = zero
	}
	if !(*v > 0 && *v < 1) {
		return &endpick.ConfigError{Field: field, Reason: fmt.Sprintf("is %v, outside (0, 1)", *v)}
	}
	return nil
}
