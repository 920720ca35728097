package kvevents

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/precise"
)

// reading is a running subscriber, and the index that it feeds.
type reading struct {
	t      testing.TB
	index  *precise.Index
	ref    endpick.EndpointRef
	sub    *Subscriber
	engine *engine
	end    func()
}

func read(t testing.TB, e *engine, change func(*Config)) *reading {
	r := &reading{t: t, engine: e}
	r.index = rig.Must(precise.New(precise.Config{}))
	router := rig.Must(endpick.New(endpick.Config{Policy: endpick.Policy{Matcher: r.index}, Endpoints: []endpick.Endpoint{{ID: "e"}}}))
	r.ref, _ = router.Ref("e")
	feed := rig.Must(r.index.Feed(r.ref, precise.FeedConfig{}))
	config := Config{Events: "tcp://events:1", Replay: "replay:1", Sink: feed, Dial: e.dial, Reconnect: time.Millisecond}
	if change != nil {
		change(&config)
	}
	r.sub = rig.Must(New(config))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.sub.Run(ctx) }()
	r.end = func() {
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	}
	return r
}

// held is how many tokens from first on the engine is known to hold.
func (r *reading) held(first, blocks int) int {
	tokens := make([]uint32, 16*blocks)
	for i := range tokens {
		tokens[i] = uint32(first + i)
	}
	req := endpick.Request{Blocks: prefix.AppendTokens(nil, prefix.Seed{}, tokens), Exact: true, InputTokens: len(tokens) + 1, BlockTokens: 16}
	candidates := []endpick.Candidate{{Ref: r.ref}}
	r.index.Match(&req, candidates)
	return candidates[0].PrefixTokens
}

func (r *reading) knows() precise.Knowledge { return r.index.Stats().Feeds[0].Knows }

// until waits for a condition.
func (r *reading) until(what string, ok func(Stats) bool) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return ok(r.sub.Stats()) }, 30*time.Second, time.Millisecond, "%s: %+v", what, r.sub.Stats())
}

// live publishes until something arrives: a PUB socket drops messages until it knows
// the subscriber.
func (r *reading) live(p *publisher) {
	r.t.Helper()
	first := p.next
	r.until("live", func(s Stats) bool {
		if s.State == Live && s.Next <= first {
			p.publish(false)
		}
		return s.Next > first
	})
	p.mu.Lock()
	next := p.next
	p.mu.Unlock()
	r.until("all", func(s Stats) bool { return s.Next == next })
}

// An engine that was running before, lost batches, a restart in the middle, and one
// while no client is connected, with both framings of replies.
func TestSubscriber(t *testing.T) {
	for _, topicBack := range []bool{false, true} {
		t.Run(fmt.Sprintf("topic in replies %v", topicBack), func(t *testing.T) {
			e := &engine{}
			p := newPublisher(t, topicBack, 10_000)
			p.publish(false, store(nil, 0, 1, 2), store(2, 32, 3)) // before anybody listens
			e.is(p)
			r := read(t, e, nil)
			r.until("whole", func(s Stats) bool { return s.Next == 1 })
			require.Equal(t, 48, r.held(0, 4))
			require.Equal(t, precise.Whole, r.knows())

			r.live(p)
			gaps := r.sub.Stats().Gaps
			p.publish(true, store(3, 48, 4)) // lost
			p.publish(true, remove(3))       // lost
			p.publish(true, store(2, 32, 3)) // lost
			p.publish(false, store(4, 64, 5))
			next := p.next
			r.until("the gap is closed", func(s Stats) bool { return s.Next == next })
			require.Equal(t, 80, r.held(0, 8))
			s := r.sub.Stats()
			require.Equal(t, gaps+1, s.Gaps)
			require.Zero(t, s.Lost+s.Restarts+s.Unknown+s.ReplaysFailed)
			require.Equal(t, Live, s.State)
			require.Equal(t, precise.Whole, r.knows())

			// It restarts, with other names for its blocks, and an empty cache.
			p.kill()
			q := newPublisher(t, topicBack, 10_000)
			q.publish(false, store(nil, 0, 101))
			e.is(q)
			r.until("restart", func(s Stats) bool { return s.Restarts == 1 && s.Next == 1 && s.State == Live })
			require.Equal(t, 16, r.held(0, 8))
			require.Equal(t, precise.Whole, r.knows())
			r.live(q)
			q.publish(false, store(101, 16, 102))
			next = q.next
			r.until("it goes on", func(s Stats) bool { return s.Next == next })
			require.Equal(t, 32, r.held(0, 8))

			// The connection breaks, and the engine continues without us.
			e.is(nil)
			q.pub.Close()
			r.until("no connection", func(s Stats) bool { return s.State == Connecting && s.Err != nil })
			require.Equal(t, 32, r.held(0, 8), "for some time it counts")
			q.publish(true, store(102, 32, 103))
			q.listenAgain()
			e.is(q)
			r.until("what was missed", func(s Stats) bool { return s.Next == next+1 && s.State == Live })
			require.Equal(t, 48, r.held(0, 8))
			require.Equal(t, uint64(1), r.sub.Stats().Restarts)
			require.Equal(t, precise.Whole, r.knows())

			r.end()
			require.Equal(t, precise.Nothing, r.knows())
		})
	}
}

// If the engine no longer has the missing batches, the knowledge of its cache is lost.
func TestReplayDoesNotReachBack(t *testing.T) {
	e := &engine{}
	p := newPublisher(t, true, 2)
	e.is(p)
	for i := range 5 {
		p.publish(false, store(nil, 1000*i, i+1))
	}
	r := read(t, e, nil)
	r.until("what there is", func(s Stats) bool { return s.Next == 5 })
	require.Equal(t, precise.Partial, r.knows())
	require.Equal(t, 16, r.held(3000, 2))
	require.Zero(t, r.held(2000, 2))
	r.live(p)
	for i := range 4 {
		p.publish(true, store(nil, 10_000*(i+1), 10+i))
	}
	p.publish(false, store(nil, 90_000, 20))
	r.until("the rest", func(s Stats) bool { return s.Next == p.next })
	require.Equal(t, precise.Partial, r.knows())
	require.Equal(t, 16, r.held(90_000, 2))
	require.Equal(t, 16, r.held(40_000, 2), "the buffer reached back so far")
	require.Zero(t, r.held(3000, 2), "it may be there or not")
	r.end()
}

// Events about unknown blocks trigger a full replay.
func TestUnknownBlocksAreAskedFor(t *testing.T) {
	e := &engine{}
	p := newPublisher(t, true, 100)
	p.publish(false, store(nil, 0, 1))
	e.is(p)
	r := read(t, e, nil)
	r.live(p)
	p.publish(false, store(77, 16, 2)) // after an unknown block
	r.until("resync", func(s Stats) bool { return s.Resyncs == 1 && s.Next == p.next })
	require.Equal(t, 16, r.held(0, 2))
	require.Equal(t, precise.Partial, r.knows())
	p.publish(false, store(78, 16, 3))
	r.until("once in a minute", func(s Stats) bool { return s.Next == p.next })
	require.Equal(t, uint64(1), r.sub.Stats().Resyncs)
	r.end()
}

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
