package replica

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport/replica/internal/protocol"
)

func TestQueue(t *testing.T) {
	q := newQueue()
	q.put(&event{kind: routed}, []uint64{1}, q.wake)
	events, _, lost := q.take(nil, nil)
	assert.Empty(t, events, "nobody runs")
	assert.False(t, lost)
	q.set(true)
	q.put(&event{kind: routed}, []uint64{1, 2}, q.wake)
	q.put(&event{kind: done}, nil, q.soon)
	q.put(&event{kind: done}, []uint64{3}, q.soon)
	require.Len(t, q.wake, 1)
	require.Len(t, q.soon, 1)
	events, blocks, lost := q.take(nil, nil)
	assert.Len(t, events, 3)
	assert.Equal(t, []uint64{3}, blocks[events[2].from:events[2].end])
	assert.Equal(t, []uint64{1, 2}, blocks[events[0].from:events[0].end])
	assert.False(t, lost)

	for range maxEvents {
		q.put(&event{}, nil, q.soon)
	}
	_, _, lost = q.take(nil, nil)
	assert.False(t, lost)
	for range maxEvents + 1 {
		q.put(&event{}, nil, q.soon)
	}
	events, _, lost = q.take(nil, nil)
	assert.Len(t, events, maxEvents)
	assert.True(t, lost)
	q.put(&event{}, make([]uint64, maxBlocks), q.soon)
	q.put(&event{}, make([]uint64, 1), q.soon)
	events, _, lost = q.take(nil, nil)
	assert.Len(t, events, 1)
	assert.True(t, lost)
	_, _, lost = q.take(nil, nil)
	assert.False(t, lost, "it is told once")
}

// Queuing copies into reused memory.
func TestQueueAllocatesNothing(t *testing.T) {
	q := newQueue()
	q.set(true)
	blocks := make([]uint64, 100)
	var events []event
	var taken []uint64
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		q.put(&event{kind: routed, outcome: protocol.Outcome{}}, blocks, q.wake)
		events, taken, _ = q.take(events, taken)
	}))
}

// BenchmarkTold measures what sharing adds to a request: routed, first token and end.
func BenchmarkTold(b *testing.B) {
	r, err := New(Config{Key: prefix.NewKey()})
	require.NoError(b, err)
	r.queue.set(true)
	req := endpick.Request{Model: "m", InputTokens: 16384, Blocks: make([]uint64, 1024)}
	e := &endpick.Event{Request: &req, Candidate: &endpick.Candidate{Endpoint: &endpick.Endpoint{ID: "a"}}, Now: time.Unix(1, 0), RoutedAt: time.Unix(0, 0)}
	o := &endpick.Outcome{}
	var events []event
	var blocks []uint64
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r.Routed(e)
		r.FirstToken(e)
		r.Done(e, o)
		if i%100 == 0 {
			events, blocks, _ = r.queue.take(events, blocks)
		}
	}
}

// Any sender on the bus, with a key or without, can fill only a bounded amount of memory.
func TestInboxIsBounded(t *testing.T) {
	r, err := New(Config{Key: prefix.NewKey()})
	require.NoError(t, err)
	router, err := endpick.New(endpick.Config{})
	require.NoError(t, err)
	s := &session{replica: r, router: router, inbox: make(chan []byte, maxInbox), node: protocol.New(protocol.Config{Instance: 1})}
	s.counts.Instance = 1
	fill := func(size, n int) (bytes int) {
		for range n {
			s.receive(make([]byte, size))
		}
		for range len(s.inbox) {
			message := <-s.inbox
			bytes += len(message)
			s.takeIn(message)
		}
		return bytes
	}
	for range 2 { // empty again
		assert.Zero(t, s.waiting.Load())
		assert.Equal(t, 93*maxMessage, fill(maxMessage, 200), "93 × 350 KiB are 32 MiB")
		assert.Equal(t, maxInbox, fill(1, 2*maxInbox))
		assert.Zero(t, fill(maxMessage+1, 10))
	}
	assert.Equal(t, uint64(2*(200-93+maxInbox+10)), s.missed.Load())
	assert.Equal(t, uint64(2*(93+maxInbox)), s.counts.Received)
}
