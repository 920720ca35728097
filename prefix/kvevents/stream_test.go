package kvevents

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix/precise"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

// blocksOf is a sink that keeps a set of names.
type blocksOf struct {
	has     map[precise.Hash]bool
	knows   precise.Knowledge
	unknown int // to be reported for the next batch
}

func (b *blocksOf) Apply(events []precise.Event) int {
	for _, e := range events {
		for _, h := range e.Hashes {
			if e.Kind == precise.Stored {
				b.has[h] = true
			} else {
				delete(b.has, h)
			}
		}
	}
	unknown := b.unknown
	b.unknown = 0
	return unknown
}

func (b *blocksOf) Reset(k precise.Knowledge) { b.has, b.knows = map[precise.Hash]bool{}, k }

// process is an engine's process, as visible in its messages.
type process struct {
	batches
	has   map[precise.Hash]bool
	since float64 // by its clock: no two batches are the same
}

var clock float64

func newProcess(keep int) *process {
	clock++
	return &process{batches: batches{keep: keep}, has: map[precise.Hash]bool{}, since: clock}
}

func (p *process) publish(removes bool, name int) published {
	event := any(store(nil, 0, name))
	if p.has[precise.Hash(name)] = true; removes {
		event = remove(name)
		delete(p.has, precise.Hash(name))
	}
	return p.add(rig.Must(msgpack.Marshal([]any{p.since, []any{event}, 0})))
}

// say publishes a batch that arrives.
func (p *process) say(t testing.TB, s *stream, removes bool, name int) {
	b := p.publish(removes, name)
	s.message(b.number, b.payload)
}

func newStream(p **process) (*stream, *blocksOf) {
	sink := &blocksOf{has: map[precise.Hash]bool{}}
	return &stream{
		sink: sink, decoder: newDecoder(),
		replay: func(from uint64, each func(uint64, []byte) bool) error { return (*p).replay(from, each) },
		resync: func() bool { return true },
	}, sink
}

// Whatever gets lost, is delayed by a replay, breaks or restarts: a sink that is told
// that it knows the whole does, and none has blocks that are not there.
func TestStreamTellsTheTruth(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	whole, partial, restarts := 0, 0, 0
	for range 150 {
		p := newProcess(1 + r.IntN(30))
		s, sink := newStream(&p)
		connected := false
		for range 100 {
			switch roll := r.IntN(20); {
			case roll == 0 && connected:
				connected = false
			case roll == 1:
				p = newProcess(p.keep)
				connected = false
				restarts++
				for range r.IntN(40) { // it may get this far unseen
					p.publish(r.IntN(3) == 0, r.IntN(20))
				}
			case !connected && roll < 8:
				connected = true
				var queue []published
				for range r.IntN(3) { // published before the replay, and queued behind it
					queue = append(queue, p.publish(r.IntN(3) == 0, r.IntN(20)))
				}
				s.connected()
				require.Equal(t, p.next, s.next)
				for _, b := range queue {
					s.message(b.number, b.payload)
				}
				require.Equal(t, p.next, s.next, "what was replayed does not count twice")
			default:
				b := p.publish(r.IntN(3) == 0, r.IntN(20))
				if connected && r.IntN(8) > 0 {
					s.message(b.number, b.payload)
				}
			}
			if !connected || s.next != p.next {
				continue // it will be seen with the next message
			}
			switch sink.knows {
			case precise.Whole:
				whole++
				require.Equal(t, p.has, sink.has)
			case precise.Partial:
				partial++
				for h := range sink.has {
					require.True(t, p.has[h])
				}
			default:
				t.Fatal("nothing is known of a connected engine")
			}
		}
	}
	t.Logf("%d times the whole was known, %d times a part; %d restarts", whole, partial, restarts)
	require.Greater(t, whole, 1500)
	require.Greater(t, partial, 500)
}

func TestStreamRestarts(t *testing.T) {
	p := newProcess(100)
	s, sink := newStream(&p)
	s.connected()
	require.Equal(t, precise.Whole, sink.knows, "nothing was published: the cache is empty")
	for name := range 3 {
		p.say(t, s, false, name)
	}
	s.stale()
	p.publish(false, 3)
	s.connected()
	require.Equal(t, []any{precise.Whole, p.has, uint64(0)}, []any{sink.knows, sink.has, s.stats.Restarts}, "it is the same, after long")
	// Another process in its place has published as much.
	p = newProcess(100)
	for name := range 4 {
		p.publish(false, 10+name)
	}
	s.connected()
	require.Equal(t, []any{precise.Whole, p.has, uint64(1)}, []any{sink.knows, sink.has, s.stats.Restarts})

	// Numbers fall within a connection, as with a proxy in front of the engine.
	p.say(t, s, true, 10)
	require.Equal(t, p.has, sink.has)
	p = newProcess(100)
	p.publish(false, 20)
	p.say(t, s, false, 21)
	require.Equal(t, p.has, sink.has)
	require.Equal(t, precise.Whole, sink.knows)
}

// A failed replay costs what it would have brought, and the engine is not taken for the
// previous one.
func TestStreamReplayFails(t *testing.T) {
	p := newProcess(100)
	s, sink := newStream(&p)
	s.connected()
	p.say(t, s, false, 1)
	s.replay = func(uint64, func(uint64, []byte) bool) error { return errors.New("no") }
	p.publish(false, 2)
	p.say(t, s, false, 3)
	require.Equal(t, precise.Partial, sink.knows)
	require.Equal(t, map[precise.Hash]bool{3: true}, sink.has)
	require.Equal(t, uint64(1), s.stats.Lost)

	p = newProcess(100)
	s.connected()
	p.say(t, s, false, 7)
	require.Equal(t, map[precise.Hash]bool{7: true}, sink.has, "it begins at 0")
	require.Equal(t, precise.Whole, sink.knows)
	require.Equal(t, uint64(2), s.stats.ReplaysFailed)
}

// Unreadable messages are lost; unknown blocks trigger a replay.
func TestStreamBadMessages(t *testing.T) {
	p := newProcess(100)
	s, sink := newStream(&p)
	s.connected()
	p.say(t, s, false, 1)
	p.next++
	s.message(1, []byte("\xc1"))
	require.Equal(t, uint64(1), s.stats.Malformed)
	require.Equal(t, precise.Partial, sink.knows)
	require.Empty(t, sink.has)

	p = newProcess(100)
	s, sink = newStream(&p)
	s.connected()
	sink.unknown = 1
	p.say(t, s, false, 1)
	require.Equal(t, []uint64{1, 2}, []uint64{s.stats.Resyncs, s.stats.Replays}, "at the start and now")
	require.Equal(t, map[precise.Hash]bool{1: true}, sink.has)
	s.resync = func() bool { return false }
	sink.unknown = 1
	p.say(t, s, false, 2)
	require.Equal(t, uint64(1), s.stats.Resyncs)
	require.Equal(t, uint64(2), s.stats.Unknown)
	s.replay, s.resync = nil, func() bool { return true }
	sink.unknown = 1
	p.say(t, s, false, 3)
	require.Equal(t, uint64(1), s.stats.Resyncs, "nobody can be asked")
}

// A message of very many events is taken in one by one, and memory for more than an engine sends is not
// held on to.
func TestStreamOfMuch(t *testing.T) {
	p := newProcess(0)
	s, sink := newStream(&p)
	s.replay = nil
	events, want := make([]any, 100_000), map[precise.Hash]bool{}
	for i := range events {
		name := i % 5000
		if events[i] = store(nil, 0, name); i%3 == 0 {
			events[i] = remove(name)
		}
		if want[precise.Hash(name)] = true; i%3 == 0 {
			delete(want, precise.Hash(name))
		}
	}
	s.message(0, rig.Must(msgpack.Marshal([]any{1.0, events, 0})))
	require.EqualValues(t, len(events), s.stats.Events)
	require.Equal(t, want, sink.has)
	require.Less(t, cap(s.decoder.hashes), 64)
	s.message(1, rig.Must(msgpack.Marshal([]any{1.0, []any{remove(make([]int, 1<<20)...), remove(make([]int, 1<<20+1)...)}, 0})))
	require.Greater(t, cap(s.decoder.hashes), 1<<20)
	require.Less(t, cap(s.decoder.hashes), 1<<21)
	require.EqualValues(t, 1, s.stats.Counts.Malformed, "more than a million in one event")
	s.message(2, rig.Must(msgpack.Marshal([]any{1.0, []any{store(nil, 0, 7)}, 0})))
	require.Less(t, cap(s.decoder.hashes), 64)
	require.True(t, sink.has[7])
}

func TestFrames(t *testing.T) {
	seven := "\x00\x00\x00\x00\x00\x00\x00\x07"
	minus := "\xff\xff\xff\xff\xff\xff\xff\xff"
	for _, c := range []struct {
		frames  []string
		number  uint64
		end, ok bool
	}{
		{[]string{"topic", seven, "x"}, 7, false, true},
		{[]string{"", seven, "x"}, 7, false, true},
		{[]string{"", "topic", seven, "x"}, 7, false, true},
		{[]string{seven, "x"}, 7, false, true},
		{[]string{"", minus, ""}, 1<<64 - 1, true, true},
		{[]string{"", "topic", minus, ""}, 1<<64 - 1, true, true},
		{[]string{"", ""}, 0, true, false},
		{[]string{"", "", ""}, 0, true, false},
		{[]string{"topic", "7", "x"}, 0, false, false},
		{[]string{"topic", minus, "x"}, 1<<64 - 1, true, true},
		{[]string{"topic", "\x80\x00\x00\x00\x00\x00\x00\x00", "x"}, 1 << 63, false, false},
		{[]string{"topic", "\x7f\xff\xff\xff\xff\xff\xff\xff", "x"}, 1<<63 - 1, false, true},
		{[]string{"", "x"}, 0, false, false},
		{[]string{"x"}, 0, false, false},
	} {
		var frames [][]byte
		for _, f := range c.frames {
			frames = append(frames, []byte(f))
		}
		number, _, end, ok := parseFrames(frames)
		require.Equal(t, c.number, number, "%q", c.frames)
		require.Equal(t, []bool{c.end, c.ok}, []bool{end, ok}, "%q", c.frames)
	}
}
