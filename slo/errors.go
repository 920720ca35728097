package slo

import (
	"fmt"

	"github.com/endpick/endpick"
)

// ConfigError says which field of a config was refused. It matches
// [endpick.ErrConfig].
type ConfigError struct {
	Field  string
	Reason string
}

func (e *ConfigError) Error() string { return fmt.Sprintf("slo: config: %s %s", e.Field, e.Reason) }

// Unwrap returns [endpick.ErrConfig].
func (e *ConfigError) Unwrap() error { return endpick.ErrConfig }

// share sets a probability or weight that was left at zero to its default, and
// checks it.
func share(field string, v *float64, zero float64) error {
	if *v == 0 {
		*v = zero
	}
	if !(*v > 0 && *v < 1) {
		return &ConfigError{Field: field, Reason: fmt.Sprintf("is %v, outside (0, 1)", *v)}
	}
	return nil
}
