package replica

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport/replica/internal/protocol"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ledger records the events of a router's stages.
type ledger struct {
	routed, first int
	ended         []endpick.Outcome
}

func (*ledger) Admit(*endpick.Request, []endpick.Candidate) error { return nil }
func (l *ledger) Routed(*endpick.Event)                           { l.routed++ }
func (l *ledger) FirstToken(*endpick.Event)                       { l.first++ }
func (l *ledger) Done(_ *endpick.Event, o *endpick.Outcome)       { l.ended = append(l.ended, *o) }

// talk is a session and the node of another replica that it talks to.
type talk struct {
	*session
	now      time.Time
	other    *protocol.Node
	reported []protocol.Effect // effects at the other node
	heard    *ledger
	loses    bool
	closed   error
}

func (l *talk) Publish(to uint32, message []byte) error {
	if !l.loses {
		l.other.Receive(l.now, message)
	}
	return nil
}

func (l *talk) Connected() bool { return true }
func (l *talk) Close() error    { return l.closed }

func newTalk(t *testing.T) *talk {
	l := &talk{now: time.Unix(1000, 0), heard: &ledger{}}
	r := rig.Must(New(Config{Key: prefix.NewKey()}))
	router := rig.Must(endpick.New(endpick.Config{
		Endpoints: []endpick.Endpoint{{ID: "a"}, {ID: "b"}}, Clock: func() time.Time { return l.now }, LeaseTimeout: time.Minute,
		Policy: endpick.Policy{Admitters: []endpick.Admitter{l.heard}},
	}))
	node := func(instance uint32) *protocol.Node {
		drawn := uint64(0)
		return protocol.New(protocol.Config{
			Instance: instance, Secret: r.config.Key.Reveal(), ShareBlocks: true, Blocks: 1 << 16, Forget: time.Hour,
			Draw: func() uint64 { drawn += 2; return drawn },
		})
	}
	l.other = node(2)
	l.session = &session{replica: r, router: router, inbox: make(chan []byte, maxInbox), node: node(1), outcomes: map[string]*[2]int{}}
	l.counts.Instance = 1
	l.line = l
	r.queue.set(true)
	l.together(time.Second)
	require.True(t, l.node.Peers()[0].Live)
	require.True(t, l.other.Peers()[0].Live)
	return l
}

// together lets time pass for both.
func (l *talk) together(d time.Duration) {
	for end := l.now.Add(d); l.now.Before(end); l.now = l.now.Add(50 * time.Millisecond) {
		l.node.Tick(l.now)
		l.pass()
		l.other.Flush(l.now)
		l.other.Tick(l.now)
		l.hear()
	}
}

// hear delivers what the other sends.
func (l *talk) hear() {
	out, effects := l.other.Drain()
	l.reported = append(l.reported, effects...)
	for _, m := range out {
		l.receive(m.Payload)
		l.takeIn(<-l.inbox)
	}
}

func (l *talk) event(slot uint32, blocks ...uint64) *endpick.Event {
	return &endpick.Event{
		Request: &endpick.Request{InputTokens: int(slot), Blocks: blocks}, Candidate: &endpick.Candidate{Endpoint: &endpick.Endpoint{ID: "a"}},
		Lease: endpick.LeaseRef{Slot: slot, Generation: 1}, Now: l.now, RoutedAt: l.now,
	}
}

// Each request is sent with its own blocks and its own end, and each outcome once.
func TestABatchIsTold(t *testing.T) {
	l := newTalk(t)
	l.reported = nil
	one, two := l.event(1, 1, 2), l.event(2, 7)
	l.replica.Routed(one)
	l.replica.Routed(two)
	l.replica.Done(one, &endpick.Outcome{Blocks: []uint64{1, 2, 3}})
	l.replica.Done(two, &endpick.Outcome{Blocks: []uint64{7, 8, 9}})
	l.replica.tellOutcome("a", true)
	l.replica.tellOutcome("a", false)
	l.replica.tellOutcome("a", false)
	for range 3 {
		require.False(t, l.tell())
	}
	l.hear()
	require.Len(t, l.reported, 5)
	assert.Equal(t, []uint64{1, 2}, l.reported[0].Request.Blocks)
	assert.Equal(t, []uint64{7}, l.reported[1].Request.Blocks)
	assert.Equal(t, []uint64{1, 2, 3}, l.reported[2].Outcome.Blocks)
	assert.Equal(t, []uint64{7, 8, 9}, l.reported[3].Outcome.Blocks)
	assert.Equal(t, protocol.Effect{Kind: protocol.Outcomes, Endpoint: "a", Failed: 1, Served: 2}, l.reported[4])
}

// A local loss ends the session, and the partial batch is not sent.
func TestWhatIsLostEndsTheSession(t *testing.T) {
	l := newTalk(t)
	for i := range uint32(maxEvents + 1) {
		l.replica.Routed(l.event(i))
	}
	l.reported = nil
	assert.True(t, l.tell())
	l.hear()
	assert.Empty(t, l.reported)
	assert.EqualValues(t, 1, l.counts.Restarts)
}

// Its own messages, which some buses return, are ignored; other messages may be in
// memory that is reused.
func TestMessagesAreTakenIn(t *testing.T) {
	l := newTalk(t)
	l.other.Outcomes("a", 1, 0)
	l.other.Flush(l.now)
	out, _ := l.other.Drain()
	require.Len(t, out, 1)
	message := out[0].Payload
	l.receive(message)
	clear(message)
	l.node.Outcomes("a", 1, 0)
	l.node.Flush(l.now)
	out, _ = l.node.Drain()
	l.receive(out[0].Payload)
	require.Len(t, l.inbox, 1)
	applied := l.node.Counts().Applied
	l.takeIn(<-l.inbox)
	assert.Equal(t, applied+1, l.node.Counts().Applied)
	assert.Zero(t, l.waiting.Load())
}

// What endpoints hold because of past requests is reported as requests that were
// answered and ended well.
func TestWhatIsHeldIsHeardOf(t *testing.T) {
	l := newTalk(t)
	l.do(&protocol.Effect{Kind: protocol.Holds, Request: endpick.Request{InputTokens: 10, Adopted: &endpick.Adopted{Endpoint: "a", Mirrored: true, ExpectedCached: 10}}})
	assert.Equal(t, &ledger{routed: 1, first: 1, ended: []endpick.Outcome{{InputTokens: 1}}}, l.heard)
	l.do(&protocol.Effect{Kind: protocol.Holds, Request: endpick.Request{InputTokens: 10, Adopted: &endpick.Adopted{Endpoint: "nowhere", Mirrored: true}}})
	assert.Equal(t, 1, l.heard.routed)
	assert.Zero(t, l.router.Stats().OpenLeases)
}

// The mirrored requests of others are kept alive as long as their replica confirms them,
// even after a clock is set back.
func TestMirrorsAreKeptAlive(t *testing.T) {
	l := newTalk(t)
	l.other.Routed(endpick.LeaseRef{Slot: 1}, "a", &endpick.Request{InputTokens: 10}, 0, nil)
	l.other.Flush(l.now)
	l.hear()
	for range 60 {
		l.keepAlive()
		l.now = l.now.Add(14 * time.Second) // almost a quarter of the timeout
		l.router.Sweep(l.now)
		require.Equal(t, 1, l.router.Stats().OpenLeases)
	}
	l.now = l.now.Add(time.Hour)
	l.keepAlive()
	l.now = l.now.Add(-2 * time.Hour)
	since := l.router.Now()
	l.keepAlive()
	assert.Equal(t, since, l.keptAlive)
	l.now = l.now.Add(14 * time.Second)
	l.keepAlive()
	assert.Equal(t, since, l.keptAlive, "not more often than it takes")
	l.now = l.now.Add(2 * time.Second)
	l.keepAlive()
	assert.Equal(t, since.Add(16*time.Second), l.keptAlive)
	l.now = l.now.Add(2 * time.Minute)
	l.router.Sweep(l.now)
	assert.Zero(t, l.router.Stats().OpenLeases, "nobody said so")
}

// Status is current: the age of what was heard, and the totals of earlier sessions.
func TestWhatIsShown(t *testing.T) {
	l := newTalk(t)
	l.other.Outcomes("a", 1, 0)
	l.other.Flush(l.now)
	l.other.Drain() // lost
	l.together(5 * time.Second)
	l.before = Status{Shared: 100, Sent: 1000}
	l.now = l.now.Add(3 * time.Second)
	l.receive(make([]byte, maxMessage+1))
	l.publish()
	st := l.replica.Status()
	assert.EqualValues(t, 1, st.Missed, "it was too long")
	assert.InDelta(t, 3*time.Second, st.Peers[0].Age, float64(500*time.Millisecond))
	assert.EqualValues(t, 100, st.Shared)
	assert.Equal(t, l.counts.Sent+1000, st.Sent)
	assert.EqualValues(t, 2, st.Snapshots, "one of them after a gap")
	assert.Less(t, st.SnapshotBytes, st.SentBytes, "most of them are heartbeats")
	assert.Greater(t, st.ReceivedBytes, 10*st.Received)
	assert.Positive(t, st.SnapshotBytes)
	st.Peers[0].Name = "changed"
	assert.NotEqual(t, "changed", l.replica.Status().Peers[0].Name)
	l.now = l.now.Add(-time.Hour)
	l.publish()
	assert.InDelta(t, 3*time.Second, l.replica.Status().Peers[0].Age, float64(500*time.Millisecond), "the clock was set back")
	l.leave()
	st = l.replica.Status()
	assert.False(t, st.Running || st.Connected)
	assert.Empty(t, st.Peers)
	assert.Zero(t, st.Instance)
	assert.EqualValues(t, 100, st.Shared)
}

// A bus that fails to close is reported.
type stuck struct{ err error }

func (s stuck) Open(uint32, func([]byte)) (Line, error) { return s, nil }
func (stuck) Publish(uint32, []byte) error              { return nil }
func (stuck) Connected() bool                           { return true }
func (s stuck) Close() error                            { return s.err }

// When Run has ended, nothing is kept for others, and it may run again. It says why a bus can't be left.
func TestTheEndOfARun(t *testing.T) {
	r := rig.Must(New(Config{Key: prefix.NewKey()}))
	router := rig.Must(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "a"}}, Policy: endpick.Policy{Admitters: []endpick.Admitter{r}}}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	broken := errors.New("broken")
	for range 2 {
		require.ErrorIs(t, r.Run(ctx, router, stuck{broken}), broken)
		require.NoError(t, r.Run(ctx, router, stuck{}))
	}
	_ = rig.Must(router.Route(endpick.Request{}))
	events, _, _ := r.queue.take(nil, nil)
	assert.Empty(t, events)
}

type unreachable struct{}

func (unreachable) Dial(string, string) (net.Conn, error) { return nil, errors.New("unreachable") }

// A connection is set up to reconnect forever and not to buffer messages for later.
func TestDial(t *testing.T) {
	conn, err := Dial("nats://127.0.0.1:1", nats.SetCustomDialer(unreachable{}))
	require.NoError(t, err, "although there is nobody yet")
	defer conn.Close()
	o := conn.Opts
	assert.Equal(t, []any{true, true, true, -1, -1}, []any{o.NoEcho, o.RetryOnFailedConnect, o.IgnoreAuthErrorAbort, o.MaxReconnect, o.ReconnectBufSize})
	assert.Equal(t, []time.Duration{5 * time.Second, 2 * time.Second, 250 * time.Millisecond}, []time.Duration{o.PingInterval, o.FlusherTimeout, o.ReconnectWait})
	other := rig.Must(Dial("nats://127.0.0.1:1", nats.SetCustomDialer(unreachable{}), nats.PingInterval(time.Minute)))
	defer other.Close()
	assert.Equal(t, time.Minute, other.Opts.PingInterval, "options of the caller come last")

	// A message that can't be sent is dropped.
	open := rig.Must(NATS(conn, "g").Open(7, func([]byte) {}))
	l := open.(*natsLine)
	for range 100 {
		require.NoError(t, l.Publish(0, []byte("message")))
	}
	require.Eventually(t, func() bool { return l.waiting.Load() == 0 && len(l.out) == 0 && l.since.Load() == 0 }, 30*time.Second, time.Millisecond)
	assert.False(t, l.Connected())
	messages, bytes, _ := l.subscriptions[1].PendingLimits()
	assert.Equal(t, []int{1 << 16, 64 << 20}, []int{messages, bytes})
	require.NoError(t, l.Close())
	assert.Zero(t, conn.NumSubscriptions())
}

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

	// It is empty after opening and after closing.
	q.put(&event{}, []uint64{1}, q.soon)
	q.put(&event{}, make([]uint64, maxBlocks), q.soon)
	q.set(false)
	q.set(true)
	events, blocks, lost = q.take(nil, nil)
	assert.Empty(t, events)
	assert.Empty(t, blocks)
	assert.False(t, lost)
	q.put(&event{endpoint: "a"}, nil, q.soon)
	used := make([]event, 3)
	used[0].endpoint = "a request's memory"
	events, _, _ = q.take(used, nil)
	assert.Len(t, events, 1)
	assert.Empty(t, used[0].endpoint, "it is let go")
	some := make([]uint64, 100)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		q.put(&event{}, some, q.wake)
		events, blocks, _ = q.take(events, blocks)
	}), "it copies into reused memory")
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
		r.queue.set(true)

		mirror := req
		mirror.Adopted = &endpick.Adopted{Endpoint: "a", Mirrored: true}
		m := *e
		m.Request = &mirror
		r.Routed(&m)
		r.FirstToken(&m)
		r.Done(&m, &endpick.Outcome{})
		events, _ := take()
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
			ttft   time.Duration
			blocks []uint64
		}{
			{func(*endpick.Event) {}, endpick.Completed, 3 * time.Second, time.Second, reported(1, 2, 3)},
			{func(*endpick.Event) {}, endpick.Failed, 3 * time.Second, time.Second, nil},
			{func(*endpick.Event) {}, endpick.Canceled, 3 * time.Second, time.Second, nil},
			{func(e *endpick.Event) { e.Now = at }, endpick.Completed, 1, time.Second, reported(1, 2, 3)},
			{func(e *endpick.Event) { e.Request.Adopted = new(endpick.Adopted) }, endpick.Completed, 0, 0, reported(1, 2, 3)}, // nobody knows when it began
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
			assert.Equal(t, tc.ttft, got.outcome.TTFT)
			assert.Equal(t, endpick.Outcome{Status: tc.status, InputTokens: 51, OutputTokens: 9, HasCachedTokens: true, CachedTokens: 16}, got.outcome.Outcome, "as the router has counted them")
		}
		r.tellOutcome("b", true)
		r.tellOutcome("b", false)
		events, _ = take()
		assert.Equal(t, []event{{kind: outcome, endpoint: "b", failed: true}, {kind: outcome, endpoint: "b"}}, events)
		<-r.queue.wake
		for most := range 2 { // others may wait for room
			e.Candidate.Endpoint.MaxInFlight = most
			r.Done(e, &endpick.Outcome{})
			assert.Len(t, r.queue.wake, most)
		}
	}
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
		assert.Equal(t, "replica.NATS", rig.Field(nil, err), group)
		assert.ErrorContains(t, err, "has the subject group")
	}
}
