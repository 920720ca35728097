package kvevents

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

// prompts are batches as vLLM publishes them after a step, each with the blocks of one
// prompt stored and those of another removed. Names have 32 bytes.
func prompts(t testing.TB, n, blocks int) (batches [][]byte) {
	name := func(prompt, block int) []byte {
		h := make([]byte, 32)
		copy(h, fmt.Sprintf("%d of %d", block, prompt%n))
		return h
	}
	for prompt := range n {
		var came, went [][]byte
		var tokens []int
		for b := range blocks {
			came, went = append(came, name(prompt, b)), append(went, name(prompt+n/2, blocks-1-b))
		}
		for i := range 16 * blocks {
			tokens = append(tokens, (prompt*7919+i*31)%150_000)
		}
		payload, err := msgpack.Marshal([]any{1.5, []any{
			map[string]any{
				"type": "BlockStored", "block_hashes": came, "parent_block_hash": nil, "token_ids": tokens, "block_size": 16,
				"lora_id": nil, "medium": "GPU", "lora_name": nil, "extra_keys": make([]any, blocks), "group_idx": 0, "kv_cache_spec_kind": "full_attention",
			},
			map[string]any{"type": "BlockRemoved", "block_hashes": went, "medium": "GPU", "group_idx": 0},
		}, 0})
		require.NoError(t, err)
		batches = append(batches, payload)
	}
	return batches
}

// BenchmarkSubscriber is the whole path: from a PUB socket over TCP into the index. It
// includes part of the publisher's time.
func BenchmarkSubscriber(b *testing.B) {
	const blocks = 32
	batches := prompts(b, 2000, blocks)
	e := &engine{}
	p := newPublisher(b, true, 1)
	e.is(p)
	r := read(b, e, nil)
	r.live(p)
	p.keep = 0
	start := time.Now()
	// The socket queues without limit, so the publisher must not run ahead.
	for b.Loop() {
		p.publishRaw(false, batches[p.next%uint64(len(batches))])
		for p.next-r.sub.Stats().Next > 256 {
			time.Sleep(50 * time.Microsecond)
		}
	}
	require.Eventually(b, func() bool { return r.sub.Stats().Next == p.next }, time.Minute, time.Millisecond)
	b.ReportMetric(float64(b.N*blocks)/time.Since(start).Seconds(), "blocks/s")
	require.Zero(b, r.sub.Stats().Lost)
	r.end()
}
