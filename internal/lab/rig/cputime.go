package rig

import "time"

// LeastTime is the least time that f takes, by wall clock or CPU time, whichever is
// less: the minimum of so many runs, or the first that is less than enough.
func LeastTime(runs int, enough time.Duration, f func()) time.Duration {
	least := time.Duration(1<<63 - 1)
	for range runs {
		began, used := time.Now(), cpuTime()
		f()
		// CPU time includes the garbage collector's, and may advance in coarse steps.
		least = min(least, time.Since(began))
		if cpu := cpuTime() - used; cpu > 0 {
			least = min(least, cpu)
		}
		if least < enough {
			break
		}
	}
	return least
}
