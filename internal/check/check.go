// Package check checks the fields of configurations.
package check

import (
	"cmp"
	"fmt"
	"time"

	"github.com/endpick/endpick"
)

// Bad says what is wrong with a field, such as "health.Config.Router": an [endpick.ConfigError].
func Bad(field, reason string, args ...any) error {
	return &endpick.ConfigError{Field: field, Reason: fmt.Sprintf(reason, args...)}
}

// Default gives a field that is zero its default. A negative one is an error.
func Default[T int | int64 | time.Duration](field string, v *T, to T) error {
	if *v < 0 {
		return Bad(field, "is negative")
	}
	*v = cmp.Or(*v, to)
	return nil
}
