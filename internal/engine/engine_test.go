package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// plain is a profile with round numbers: a step takes 1 ms, 1 µs per token above
// 1,000 tokens, 10 µs per sequence, 1 ns per token of context and 1 ps per pair.
var plain = Profile{
	Name: "plain", StepMicros: 1000, WeightMicros: 1000, TokenMicros: 1,
	SequenceMicros: 10, ContextNanos: 1, PairNanos: 0.001,
}

func mustNew(t testing.TB, cfg Config) *Engine {
	e, err := New(cfg)
	require.NoError(t, err)
	return e
}

func chain(seed uint64, n int) []uint64 {
	hashes := make([]uint64, n)
	for i := range hashes {
		seed = (seed ^ (seed >> 29)) * 0xbf58476d1ce4e5b9
		seed += uint64(i) + 1
		hashes[i] = seed
	}
	return hashes
}

func drain(e *Engine) []Event {
	var events []Event
	for {
		at, ok := e.NextEvent()
		if !ok {
			return events
		}
		events = e.Advance(at, events)
	}
}

func TestOneRequestByHand(t *testing.T) {
	e := mustNew(t, Config{Profile: plain})
	require.NoError(t, e.Submit(5*time.Millisecond, Request{ID: 7, PromptTokens: 100, OutputTokens: 3}))
	events := drain(e)
	// Prefill: 1000 + 1000 + 10 µs + 5,050 ps. Then two decodes of 2,010 µs + 100 ns and + 101 ns.
	first := 5*time.Millisecond + 2010*time.Microsecond + 6*time.Nanosecond // 5.05 ns, rounded up
	last := 5*time.Millisecond + 3*2010*time.Microsecond + 207*time.Nanosecond
	require.Equal(t, []Event{
		{Kind: FirstToken, ID: 7, At: first, Scheduled: 5 * time.Millisecond, OutputTokens: 1},
		{Kind: Completed, ID: 7, At: last, Scheduled: 5 * time.Millisecond, OutputTokens: 3},
	}, events)
	require.Equal(t, Load{}, e.Load(time.Hour))
}
