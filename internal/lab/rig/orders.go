package rig

import "iter"

// Orders yields the numbers of the threads in each possible order of their steps, for tests
// of code that is called from many goroutines but executes each call atomically, under a
// lock: whatever happens there happens in one of these orders. The slice is reused.
func Orders(steps ...int) iter.Seq[[]int] {
	n := 0
	for _, s := range steps {
		n += s
	}
	return func(yield func([]int) bool) {
		left, order := append([]int(nil), steps...), make([]int, 0, n)
		var next func() bool
		next = func() bool {
			if len(order) == n {
				return yield(order)
			}
			for thread := range left {
				if left[thread] == 0 {
					continue
				}
				left[thread]--
				order = append(order, thread)
				if !next() {
					return false
				}
				order = order[:len(order)-1]
				left[thread]++
			}
			return true
		}
		next()
	}
}

// Explore calls run once for each combination of its choices: run calls choose to choose
// among n, at least one, and must behave the same after the same choices.
func Explore(run func(choose func(n int) int)) {
	var chosen, among []int
	for {
		at := 0
		run(func(n int) int {
			if at == len(chosen) {
				chosen, among = append(chosen, 0), append(among, n)
			}
			at++
			return chosen[at-1]
		})
		last := len(chosen) - 1
		for last >= 0 && chosen[last]+1 == among[last] {
			last--
		}
		if last < 0 {
			return
		}
		chosen, among = chosen[:last+1], among[:last+1]
		chosen[last]++
	}
}
