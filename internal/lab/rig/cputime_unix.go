//go:build unix

package rig

import (
	"syscall"
	"time"
)

// cpuTime is the CPU time of this process. It may advance in steps of
// milliseconds; 0 if it is not known.
func cpuTime() time.Duration {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
