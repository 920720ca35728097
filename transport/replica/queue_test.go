package replica

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
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

// Any sender on the bus, with a key or without, can fill only a bounded amount of memory.
func TestInboxIsBounded(t *testing.T) {
	r, router := rig.Must(New(Config{Key: prefix.NewKey()})), rig.Must(endpick.New(endpick.Config{}))
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

// A request is sent with what the other replicas need; mirrored requests are not sent,
// since they are another replica's.
func TestWhatIsTold(t *testing.T) {
	for _, disabled := range []bool{false, true} {
		r := rig.Must(New(Config{Key: prefix.NewKey(), DisableIndex: disabled}))
		take := func() ([]event, []uint64) {
			events, blocks, lost := r.queue.take(nil, nil)
			require.False(t, lost)
			return events, blocks
		}
		req := endpick.Request{
			Model: "m", Adapter: "l", Tenant: "t", SLO: endpick.SLO{TTFT: 1, TPOT: 2}, Stream: true, Exact: true,
			InputTokens: 50, ExpectedOutputTokens: 7, Responses: 3, BlockTokens: 20, Blocks: []uint64{1, 2}, Session: "s", Exclude: []string{"x"},
		}
		at := time.Unix(100, 0)
		e := &endpick.Event{
			Request: &req, Candidate: &endpick.Candidate{Endpoint: &endpick.Endpoint{ID: "a"}, PrefixTokens: 42},
			Lease: endpick.LeaseRef{Slot: 3, Generation: 4}, Now: at, RoutedAt: at, OutputTokens: 9,
		}
		r.Routed(e)
		events, _ := take()
		assert.Empty(t, events, "nobody runs")
		r.queue.set(true)

		mirror := req
		mirror.Adopted = &endpick.Adopted{Endpoint: "a", Mirrored: true}
		m := *e
		m.Request = &mirror
		r.Routed(&m)
		r.FirstToken(&m)
		r.Done(&m, &endpick.Outcome{})
		events, _ = take()
		assert.Empty(t, events)

		reported := func(all ...uint64) []uint64 {
			if disabled {
				return nil
			}
			return all
		}
		r.Routed(e)
		events, blocks := take()
		require.Len(t, events, 1)
		assert.Equal(t, reported(1, 2), append([]uint64(nil), blocks[events[0].from:events[0].end]...))
		want := req
		want.Blocks, want.Session, want.Exclude = nil, "", nil
		events[0].from, events[0].end = 0, 0
		assert.Equal(t, event{kind: routed, lease: e.Lease, endpoint: "a", prefix: 42, request: want}, events[0])

		r.FirstToken(e)
		events, _ = take()
		assert.Equal(t, []event{{kind: firstToken, lease: e.Lease}}, events)

		e.FirstTokenAt, e.Now = at.Add(time.Second), at.Add(3*time.Second)
		for _, tc := range []struct {
			change func(*endpick.Event)
			status endpick.Status
			took   time.Duration
			blocks []uint64
		}{
			{func(*endpick.Event) {}, endpick.Completed, 3 * time.Second, reported(1, 2, 3)},
			{func(*endpick.Event) {}, endpick.Failed, 3 * time.Second, nil},
			{func(*endpick.Event) {}, endpick.Canceled, 3 * time.Second, nil},
			{func(e *endpick.Event) { e.Now = at }, endpick.Completed, 1, reported(1, 2, 3)},
			{func(e *endpick.Event) { e.Request.Adopted = new(endpick.Adopted) }, endpick.Completed, 0, reported(1, 2, 3)}, // nobody knows when it began
		} {
			now, mine := *e, req
			now.Request = &mine
			tc.change(&now)
			r.Done(&now, &endpick.Outcome{
				Status: tc.status, InputTokens: 51, OutputTokens: 70, HasCachedTokens: true, CachedTokens: 16, Blocks: []uint64{1, 2, 3},
			})
			events, blocks := take()
			require.Len(t, events, 1)
			got := events[0]
			assert.Equal(t, done, got.kind)
			assert.Equal(t, e.Lease, got.lease)
			assert.Equal(t, tc.blocks, append([]uint64(nil), blocks[got.from:got.end]...))
			assert.Equal(t, tc.took, got.outcome.Took, "%+v", tc)
			if tc.took == 3*time.Second {
				assert.Equal(t, time.Second, got.outcome.TTFT)
			}
			if tc.took == 0 {
				assert.Zero(t, got.outcome.TTFT)
			}
			assert.Equal(t, endpick.Outcome{Status: tc.status, InputTokens: 51, OutputTokens: 9, HasCachedTokens: true, CachedTokens: 16}, got.outcome.Outcome, "as the router has counted them")
		}
		r.tellOutcome("b", true)
		r.tellOutcome("b", false)
		events, _ = take()
		assert.Equal(t, []event{{kind: outcome, endpoint: "b", failed: true}, {kind: outcome, endpoint: "b"}}, events)
	}
}

// A queue is empty after opening and after closing, and has lost nothing.
func TestAQueueBeginsEmpty(t *testing.T) {
	q := newQueue()
	q.set(true)
	for range maxEvents + 1 {
		q.put(&event{}, []uint64{1}, q.soon)
	}
	q.set(false)
	q.put(&event{}, nil, q.soon)
	q.set(true)
	events, blocks, lost := q.take(nil, nil)
	assert.Empty(t, events)
	assert.Empty(t, blocks)
	assert.False(t, lost)
	q.put(&event{endpoint: "a"}, nil, q.soon)
	used := make([]event, 3)
	used[0].endpoint = "a request's memory"
	events, _, _ = q.take(used, nil)
	assert.Len(t, events, 1)
	assert.Empty(t, used[0].endpoint, "it is let go")
}

// Messages that NATS does not take are bounded in number and bytes, and refused without
// waiting.
func TestWhatNATSDoesNotTake(t *testing.T) {
	line := func() *natsLine {
		return &natsLine{natsBus: &natsBus{subject: "endpick.g"}, out: make(chan outgoing, maxOutgoing), sent: make(chan struct{})}
	}
	l := line()
	for range 16 {
		require.NoError(t, l.Publish(0, make([]byte, 1<<20)))
	}
	for range 3 {
		require.ErrorIs(t, l.Publish(0, make([]byte, 1)), errSlow)
		require.EqualValues(t, 16<<20, l.waiting.Load())
	}
	l = line()
	for range maxOutgoing {
		require.NoError(t, l.Publish(7, []byte("ab")))
	}
	for range 3 {
		require.ErrorIs(t, l.Publish(7, []byte("ab")), errSlow)
		require.EqualValues(t, 2*maxOutgoing, l.waiting.Load())
	}
	assert.Equal(t, "endpick.g.00000007", (<-l.out).subject)
	assert.Equal(t, "endpick.g.all", l.to(0))

	// A connection that has been sending one message for a second counts as hung.
	l = line()
	assert.False(t, l.Connected())
	l.connected.Store(true)
	assert.True(t, l.Connected())
	l.since.Store(time.Now().UnixNano())
	assert.True(t, l.Connected())
	l.since.Store(time.Now().Add(-hangs).UnixNano())
	assert.False(t, l.Connected())
	l.since.Store(0)
	assert.True(t, l.Connected())

	for _, group := range []string{"", ".", "a.", ".a", "a..b", "a b", "a*", "a.>", "a\tb", "a\nb", "a\rb"} {
		_, err := NATS(nil, group).Open(1, nil)
		var bad *endpick.ConfigError
		require.ErrorAs(t, err, &bad, group)
		assert.Equal(t, "replica.NATS", bad.Field)
		assert.Contains(t, bad.Reason, "has the subject group")
	}
}
