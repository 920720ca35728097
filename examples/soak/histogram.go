package main

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"
)

// histogram counts durations in buckets that grow by an eighth. The zero value is
// empty. It is safe for concurrent use.
type histogram struct {
	buckets [64 * 8]atomic.Int64
	n       atomic.Int64
}

func bucketOf(d time.Duration) int {
	v := uint64(max(d, 8))
	exp := bits.Len64(v) - 4 // v is within [8, 16) << exp
	return exp*8 + int(v>>exp) - 8
}

// upTo is the longest duration of a bucket.
func upTo(bucket int) time.Duration {
	return time.Duration(uint64(bucket%8+9)<<(bucket/8)) - 1
}

func (h *histogram) add(d time.Duration) {
	h.buckets[bucketOf(d)].Add(1)
	h.n.Add(1)
}

// quantile returns an upper bound of the quantile, at most an eighth too long.
func (h *histogram) quantile(thousandths int64) time.Duration {
	left := (h.n.Load()*thousandths + 999) / 1000
	for i := range h.buckets {
		if left -= h.buckets[i].Load(); left <= 0 {
			return upTo(i)
		}
	}
	return 0
}

// String is the median, p99 and p99.9.
func (h *histogram) String() string {
	if h.n.Load() == 0 {
		return "–"
	}
	return fmt.Sprintf("%s / %s / %s", short(h.quantile(500)), short(h.quantile(990)), short(h.quantile(999)))
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
