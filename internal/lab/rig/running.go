package rig

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/assert"
)

// Running lets something run until stop is called, which waits for its end.
func Running(ctx context.Context, run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var ended sync.WaitGroup
	ended.Go(func() { run(ctx) })
	return func() { cancel(); ended.Wait() }
}

// Output is the output of something that still runs.
type Output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements [io.Writer].
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Idle waits until no lease is open, and checks that nothing is left in flight.
func Idle(t testing.TB, router *endpick.Router) {
	t.Helper()
	assert.Eventually(t, func() bool { return router.Stats().OpenLeases == 0 }, time.Minute, time.Millisecond, "open leases")
	for _, e := range router.Endpoints() {
		assert.Zero(t, e.Candidate.InFlight, e.Candidate.Endpoint.ID)
	}
}
