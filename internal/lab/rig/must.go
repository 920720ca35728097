package rig

// Must returns what a call returned, where a test is not about its error.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
