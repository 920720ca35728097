//go:build !unix

package cputime

import "time"

// Used is how long the process has run.
func Used() time.Duration { return time.Since(start) }

var start = time.Now()
