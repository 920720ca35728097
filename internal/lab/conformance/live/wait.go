package main

import (
	"context"
	"time"
)

// within waits until something holds; false: it takes longer than patience.
func within(patience time.Duration, holds func() bool) bool {
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// sleep reports whether it slept to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
