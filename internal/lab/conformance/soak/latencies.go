package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// latencies are a random sample of durations, in a fixed amount of memory. The zero value
// is empty. It is safe for concurrent use.
type latencies struct {
	mu   sync.Mutex
	n    int
	some [1 << 14]time.Duration
}

func (l *latencies) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n++
	if at := l.n - 1; at < len(l.some) {
		l.some[at] = d
	} else if at = rand.IntN(l.n); at < len(l.some) {
		l.some[at] = d
	}
}

// String is the median, p99 and p99.9.
func (l *latencies) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n == 0 {
		return "–"
	}
	sorted := slices.Sorted(slices.Values(l.some[:min(l.n, len(l.some))]))
	at := func(thousandths int) string { return short(sorted[(len(sorted)*thousandths+999)/1000-1]) }
	return fmt.Sprintf("%s / %s / %s", at(500), at(990), at(999))
}

// short formats a duration with two digits.
func short(d time.Duration) string {
	switch {
	case d < 10*time.Microsecond:
		return fmt.Sprintf("%.1f µs", float64(d)/1e3)
	case d < time.Millisecond:
		return fmt.Sprintf("%.0f µs", float64(d)/1e3)
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.0f ms", float64(d)/1e6)
}
