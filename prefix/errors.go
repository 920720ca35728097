package prefix

import "github.com/endpick/endpick"

// ConfigError says which field of a config of this package was refused, and
// why. It matches endpick.ErrConfig.
type ConfigError struct {
	Field  string // with the type: "IndexConfig.MaxBytes"
	Reason string
}

func (e *ConfigError) Error() string { return "prefix: " + e.Field + " " + e.Reason }

// Unwrap returns endpick.ErrConfig.
func (e *ConfigError) Unwrap() error { return endpick.ErrConfig }
