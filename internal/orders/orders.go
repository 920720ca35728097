// Package orders goes through all orders in which the steps of several threads can come,
// for tests of what is called from many goroutines and takes each call at once, under a
// lock: whatever happens there happens in one of these orders.
package orders

import "iter"

// All yields the threads by number in each order in which they can take so many steps
// each. The slice is used again.
func All(steps ...int) iter.Seq[[]int] {
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

// Explore calls run once for each way in which its choices can come out: run asks choose
// to choose among n, at least one, wherever there is a choice, and has to do the same
// whenever the same was chosen.
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
