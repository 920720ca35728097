package predict

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

func (e *ConfigError) Error() string { return "predict: " + e.Field + " " + e.Reason }

// Unwrap returns [endpick.ErrConfig].
func (e *ConfigError) Unwrap() error { return endpick.ErrConfig }

func badConfig(field, reason string, args ...any) error {
	return &ConfigError{Field: field, Reason: fmt.Sprintf(reason, args...)}
}
