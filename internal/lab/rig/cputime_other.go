//go:build !unix

package rig

import "time"

// cpuTime is how long the process has been running.
func cpuTime() time.Duration { return time.Since(start) }

var start = time.Now()
