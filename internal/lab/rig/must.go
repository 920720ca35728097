package rig

import (
	"errors"
	"fmt"

	"github.com/endpick/endpick"
)

// Must returns what a call returned, where a test is not about its error.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Err returns the error of a call, where a test is about nothing else.
func Err(_ any, err error) error { return err }

// Field returns the field that a call refuses with a ConfigError, or its error if it is another one.
func Field(_ any, err error) string {
	var refused *endpick.ConfigError
	if errors.As(err, &refused) {
		return refused.Field
	}
	return fmt.Sprint("no field: ", err)
}
