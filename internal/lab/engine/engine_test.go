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
		{Kind: FirstToken, ID: 7, At: first, OutputTokens: 1},
		{Kind: Completed, ID: 7, At: last, OutputTokens: 3},
	}, events)
	require.Equal(t, Load{}, e.Load(time.Hour))
}

// A slowdown takes effect from the next step on, and for all parts of it.
func TestSlownessByHand(t *testing.T) {
	e := mustNew(t, Config{Profile: plain})
	require.NoError(t, e.Submit(0, Request{ID: 7, PromptTokens: 100, OutputTokens: 4}))
	at := func(kind EventKind) time.Duration {
		for _, event := range drain(e) {
			if event.Kind == kind {
				return event.At
			}
		}
		return 0
	}
	e.Advance(3*time.Millisecond, nil) // within the first of three decodes of 2,010 µs + 100, 101 and 102 ns
	e.SetSlowness(3*time.Millisecond, 10)
	e.Advance(5*time.Millisecond, nil) // within the second, which takes 20,101,010 ns
	e.SetSlowness(5*time.Millisecond, 1)
	prefill := 2010*time.Microsecond + 6*time.Nanosecond
	require.InDelta(t, prefill+2010100+20101010+2010102, at(Completed), 2)
}

func TestRefusedRequests(t *testing.T) {
	e := mustNew(t, Config{Profile: plain, Blocks: 10})
	require.NoError(t, e.Submit(0, Request{ID: 1, PromptTokens: 100, OutputTokens: 61}))
	for _, c := range []struct {
		request Request
		err     string
	}{
		{Request{ID: 1, PromptTokens: 1, OutputTokens: 1}, "engine: request 1: ID is already with the engine"},
		{Request{ID: 2, OutputTokens: 1}, "engine: request 2: PromptTokens 0 is below 1"},
		{Request{ID: 2, PromptTokens: 1}, "engine: request 2: OutputTokens 0 is below 1"},
		{Request{ID: 2, PromptTokens: 100, OutputTokens: 62}, "engine: request 2: 161 tokens never fit a KV cache of 160"},
	} {
		require.EqualError(t, e.Submit(0, c.request), c.err)
	}
	require.Equal(t, 1, e.Load(0).Waiting)
}

func TestRefusedConfigs(t *testing.T) {
	for _, c := range []struct {
		cfg Config
		err string
	}{
		{Config{Blocks: -1}, "engine: config: Blocks -1 is not within [1, 16777216]"},
		{Config{BlockTokens: 5000}, "engine: config: BlockTokens 5000 is not within [1, 4096]"},
		{Config{MaxSequences: 10, MaxBatchedTokens: 9}, "engine: config: MaxBatchedTokens 9 is below MaxSequences 10"},
		{Config{Profile: Profile{Name: "x"}}, `engine: profile "x": a step takes no time`},
		{Config{Profile: Profile{Name: "x", StepMicros: -1}}, `engine: profile "x": StepMicros -1 is not within [0, 6e+07]`},
		{Config{Profile: Profile{Name: "x", StepMicros: 1, PeakTFLOPS: 100, GFLOPsPerToken: 14}}, `engine: profile "x": TokenMicros 0 is faster than the peak allows (140)`},
		{Config{Profile: Profile{Name: "x", StepMicros: 1, PeakTFLOPS: 100, MFLOPsPerPair: 1}}, `engine: profile "x": PairNanos 0 is faster than the peak allows (10)`},
	} {
		_, err := New(c.cfg)
		require.EqualError(t, err, c.err)
	}
	require.Equal(t, 4000, mustNew(t, Config{MaxSequences: 4000}).Config().MaxBatchedTokens)
}

// Hashes that are not chained, or that repeat, are the caller's mistake: hits
// are missed, nothing else breaks.
func TestUnchainedHashes(t *testing.T) {
	e := mustNew(t, Config{Profile: plain, Blocks: 40})
	random := uint64(7)
	for id := range uint64(500) {
		blocks := make([]uint64, 12)
		for i := range blocks {
			random = random*6364136223846793005 + 1442695040888963407
			blocks[i] = random >> 62
		}
		require.NoError(t, e.Submit(0, Request{ID: id, PromptTokens: 150, OutputTokens: 50, Blocks: blocks}))
	}
	completed := 0
	for _, event := range drain(e) {
		if event.Kind == Completed {
			completed++
		}
	}
	require.Equal(t, 500, completed)
	require.Equal(t, int64(40), e.cache.free+e.cache.idle)
}

func TestAdvanceDoesNotAllocate(t *testing.T) {
	e := mustNew(t, Config{})
	for id := range uint64(100) {
		require.NoError(t, e.Submit(0, Request{ID: id, PromptTokens: 500, OutputTokens: 3000, Blocks: patterned(int(id), 200)}))
	}
	events := make([]Event, 0, 1000)
	now := time.Second
	events = e.Advance(now, events)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		now += 100 * time.Millisecond
		events = e.Advance(now, events[:0])
		e.Load(now)
	}))
	require.Equal(t, 100, e.Load(now).Running)
}
