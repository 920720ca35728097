package cputime

import "time"

// Least is how long f takes at least, by the clock or by the processor's time,
// whichever is less: the least of so many runs, or that of the first which takes
// less than enough.
func Least(runs int, enough time.Duration, f func()) time.Duration {
	least := time.Duration(1<<63 - 1)
	for range runs {
		began, used := time.Now(), Used()
		f()
		// The processor's time is shared with the garbage collector, and may not
		// have advanced yet.
		least = min(least, time.Since(began))
		if cpu := Used() - used; cpu > 0 {
			least = min(least, cpu)
		}
		if least < enough {
			break
		}
	}
	return least
}
