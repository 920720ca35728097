package engine

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write testdata anew")

// A small server through a busy period: chunks, shared prefixes, preemption,
// eviction, an abort and a crash. Any change of the schedule shows as a difference.
func TestTranscript(t *testing.T) {
	e := mustNew(t, Config{Profile: plain, Blocks: 24, MaxSequences: 3, MaxBatchedTokens: 128})
	var out bytes.Buffer
	show := func(events []Event) {
		for _, event := range events {
			fmt.Fprintf(&out, "%12v  request %d: %v (cached %d, output %d)\n", event.At, event.ID, event.Kind, event.CachedTokens, event.OutputTokens)
		}
	}
	run := func(until time.Duration) {
		show(e.Advance(until, nil))
		l, totals := e.Load(until), e.Totals()
		fmt.Fprintf(&out, "%12v  waiting %d, running %d, usage %.3f, cached %d, queued %d; steps %d, prefill %d, hits %d, evicted %d+%d+%d\n",
			until, l.Waiting, l.Running, l.KVUsage, l.CachedBlocks, l.QueuedTokens,
			totals.Steps, totals.PrefillTokens, totals.PrefixHitTokens, totals.EvictedSystem, totals.EvictedUser, totals.EvictedOther)
	}
	submit := func(at time.Duration, id, prefix uint64, prompt, output int) {
		blocks := chain(prefix, (prompt+output)/16)
		copy(blocks, chain(0, 3)) // a system prompt of 48 tokens for all
		fmt.Fprintf(&out, "%12v  submit %d: prompt %d, output %d\n", at, id, prompt, output)
		require.NoError(t, e.Submit(at, Request{ID: id, PromptTokens: prompt, OutputTokens: output, Blocks: blocks, SystemTokens: 48, UserTokens: 1000}))
	}
	const ms = time.Millisecond
	submit(0, 1, 1, 150, 20)
	submit(0, 2, 2, 60, 60)
	submit(1*ms, 3, 3, 100, 40)
	submit(1*ms, 4, 4, 60, 5)
	for _, at := range []time.Duration{2, 5, 10, 20, 40, 60} {
		run(at * ms)
	}
	submit(60*ms, 5, 1, 180, 10) // the next turn of 1
	run(80 * ms)
	require.NoError(t, e.Abort(80*ms, 3))
	run(150 * ms)
	run(300 * ms)
	submit(300*ms, 6, 6, 300, 80)
	submit(301*ms, 7, 7, 60, 80)
	run(380 * ms)
	show(e.Reset(380*ms, nil))
	run(400 * ms)

	path := filepath.Join("testdata", "transcript.txt")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, out.Bytes(), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), out.String())
}
