//go:build !unix

package cputime

import "time"

// Used is how long the process has been running.
func Used() time.Duration { return time.Since(start) }

var start = time.Now()
