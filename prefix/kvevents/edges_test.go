package kvevents

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix/precise"
)

// Each event is counted once, and lost batches one by one.
func TestStreamCounts(t *testing.T) {
	p := newProcess(100)
	s, sink := newStream(&p)
	var asked []uint64
	replay := s.replay
	s.replay = func(from uint64, each func(uint64, []byte) bool) error {
		asked = append(asked, from)
		return replay(from, each)
	}
	s.connected()
	s.connected()
	require.Equal(t, []uint64{0, 0}, asked, "there is nothing before the first batch")
	require.Equal(t, Stats{Replays: 2, Knows: precise.Whole}, s.stats)
	require.Equal(t, precise.Whole, sink.knows)

	odd := func() published {
		payload := rig.Must(msgpack.Marshal([]any{1.5, []any{store(nil, 0, 1), map[string]any{"type": "Tomorrow"}, store(nil, 0, 2)}, 0}))
		b := published{p.next, payload}
		p.next++
		p.buffer = append(p.buffer, b)
		return b
	}
	for range 3 {
		b := odd()
		s.message(b.number, b.payload)
	}
	require.Equal(t, Stats{Replays: 2, Knows: precise.Whole, Batches: 3, Events: 6, Counts: Counts{UnknownEvents: 3}}, s.stats)

	// Five are lost, of which the engine still has three.
	for range 5 {
		odd()
	}
	p.buffer = p.buffer[len(p.buffer)-3:]
	b := odd()
	s.message(b.number, b.payload)
	require.Equal(t, precise.Partial, sink.knows)
	require.EqualValues(t, 1, s.stats.Gaps)
	require.EqualValues(t, 1, s.stats.Restarts, "who does not have the one before is another, or might be")
	require.EqualValues(t, b.number+1, s.next)
	require.Equal(t, []uint64{0, 0, 2, 0}, asked)

	// Without a replay socket each missing number is a lost batch.
	s, sink = newStream(&p)
	s.replay = nil
	s.connected()
	s.message(5, b.payload)
	require.Equal(t, precise.Partial, sink.knows)
	require.Zero(t, s.stats.Lost, "nobody knows how many there were before")
	s.message(9, b.payload)
	require.EqualValues(t, 3, s.stats.Lost)
	require.Equal(t, precise.Partial, sink.knows)
	s.message(3, b.payload)
	require.Equal(t, []uint64{1, 3}, []uint64{s.stats.Restarts, s.stats.Lost}, "numbers fall in another engine")
	s.message(0, b.payload)
	require.EqualValues(t, 2, s.stats.Restarts)
	require.Equal(t, precise.Whole, sink.knows)
	s.connected()
	s.message(1, b.payload)
	require.Equal(t, precise.Whole, sink.knows, "it goes on over another connection")
	s.connected()
	s.message(1, b.payload)
	require.EqualValues(t, 3, s.stats.Restarts)
	require.Equal(t, precise.Partial, sink.knows)

	// The last number again is another engine's.
	s, sink = newStream(&p)
	s.replay = nil
	s.connected()
	s.message(5, b.payload)
	s.message(5, b.payload)
	require.Equal(t, []uint64{1, 2}, []uint64{s.stats.Restarts, s.stats.Batches})
	require.Equal(t, precise.Partial, sink.knows)
}

// On a connection that is not verified, lower numbers mean another engine; on a verified one
// they don't.
func TestStreamThatWasNotSure(t *testing.T) {
	p := newProcess(100)
	s, sink := newStream(&p)
	s.connected()
	var all []published
	for name := range 3 {
		all = append(all, p.publish(t, false, name))
		s.message(all[name].number, all[name].payload)
	}
	works := s.replay
	s.connected()
	s.message(all[1].number, all[1].payload)
	require.Zero(t, s.stats.Restarts, "it waited behind the replay")
	require.Equal(t, p.has, sink.has)
	s.replay = func(uint64, func(uint64, []byte) bool) error { return errors.New("no") }
	s.connected()
	s.replay = works
	s.message(all[1].number, all[1].payload)
	require.EqualValues(t, 1, s.stats.Restarts)
	require.Equal(t, p.has, sink.has, "it was asked for all")
	require.Equal(t, precise.Whole, sink.knows)

	// Unknown blocks within a replay don't trigger another one.
	p.publish(t, false, 6)
	replays := s.stats.Replays
	sink.unknown = 1
	s.connected()
	require.Zero(t, sink.unknown)
	b := p.publish(t, false, 7)
	s.message(b.number, b.payload)
	require.Equal(t, replays+1, s.stats.Replays)
	require.Zero(t, s.stats.Resyncs)
}

// Each setting has its default, and none may be negative.
func TestSettings(t *testing.T) {
	good := Config{Events: "tcp://h:1", Replay: "tcp://h:2", Sink: &resets{}}
	c := good
	require.NoError(t, c.validate())
	require.Equal(t, []any{"h:1", "h:2", 30 * time.Second, 30 * time.Second, time.Minute, 100 * time.Millisecond, 64 << 20},
		[]any{c.Events, c.Replay, c.StaleAfter, c.ReplayWithin, c.ResyncEvery, c.Reconnect, c.MaxMessage})
	require.NotNil(t, c.Dial)
	set := Config{Events: "h:1", Sink: &resets{}, StaleAfter: 1, ReplayWithin: 2, ResyncEvery: 3, Reconnect: 4, MaxMessage: 5}
	c = set
	require.NoError(t, c.validate())
	require.Equal(t, []any{time.Duration(1), time.Duration(2), time.Duration(3), time.Duration(4), 5, ""}, []any{c.StaleAfter, c.ReplayWithin, c.ResyncEvery, c.Reconnect, c.MaxMessage, c.Replay})
	for field, change := range map[string]func(*Config){
		"StaleAfter": func(c *Config) { c.StaleAfter = -1 }, "ReplayWithin": func(c *Config) { c.ReplayWithin = -1 }, "MaxMessage": func(c *Config) { c.MaxMessage = -1 },
		"Events": func(c *Config) { c.Events = "h" }, "Replay": func(c *Config) { c.Replay = "h" }, "Sink": func(c *Config) { c.Sink = nil },
		"ResyncEvery": func(c *Config) { c.ResyncEvery = -1 }, "Reconnect": func(c *Config) { c.Reconnect = -1 },
	} {
		c := good
		change(&c)
		_, err := New(c)
		var bad *endpick.ConfigError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, "kvevents.Config."+field, bad.Field)
	}
	require.Equal(t, []string{"connecting", "replaying", "live", "unknown"}, []string{Connecting.String(), Replaying.String(), Live.String(), (Live + 1).String()})
}

// A connection whose handshake fails is closed, and each successful one is counted
// once, whatever arrives over it.
func TestConnectionsEnd(t *testing.T) {
	var mu sync.Mutex
	var all []*noted
	good := false
	over := make(chan struct{})
	dial := func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		mu.Lock()
		defer mu.Unlock()
		n := &noted{Conn: here}
		all = append(all, n)
		says := "HTTP/1.1 400 Bad Request" + zeros48
		if good {
			says = greeting("PUB") + strings.Repeat(command(1, "")+command(1, numbered(0))+command(0, noEvents), 5)
			good = false
		}
		go func() {
			go io.Copy(io.Discard, there)
			io.WriteString(there, says)
			if strings.HasPrefix(says, "HTTP") {
				return // it stays open: this side closes it
			}
			<-over
			there.Close()
		}()
		return n, nil
	}
	r := read(t, &engine{}, func(c *Config) { c.Dial, c.Replay = dial, "" })
	r.until("three attempts", func(Stats) bool {
		mu.Lock()
		defer mu.Unlock()
		return len(all) > 3
	})
	require.Zero(t, r.sub.Stats().Connections)
	mu.Lock()
	good = true
	for _, n := range all[:2] {
		n.mu.Lock()
		require.True(t, n.closed, "before the next attempt")
		n.mu.Unlock()
	}
	mu.Unlock()
	r.until("one that works", func(s Stats) bool { return s.Connections > 0 && s.Next == 1 })
	close(over)
	r.until("and its end", func(s Stats) bool { return s.State == Connecting })
	require.EqualValues(t, 1, r.sub.Stats().Connections)
	r.end()
	mu.Lock()
	defer mu.Unlock()
	for i, n := range all {
		n.mu.Lock()
		require.True(t, n.closed, "%d", i)
		n.mu.Unlock()
	}
}

// The time out of reach begins when the last connection ended, not with the first attempt.
func TestStaleSinceTheLastConnection(t *testing.T) {
	e := &engine{}
	p := newPublisher(t, true, 100)
	p.publish(false, store(nil, 0, 1))
	e.is(p)
	r := read(t, e, func(c *Config) { c.StaleAfter = time.Hour })
	r.until("whole", func(s Stats) bool { return s.Next == 1 && s.State == Live })
	e.is(nil)
	p.pub.Close()
	r.until("no connection", func(s Stats) bool { return s.State == Connecting && s.Err != nil })
	require.Equal(t, precise.Whole, r.sub.Stats().Knows)
	require.Equal(t, 16, r.held(0, 1))
	r.end()
}

// resets notes what it is told to know, and when.
type resets struct {
	start time.Time
	all   []string
}

func (*resets) Apply([]precise.Event) int { return 0 }
func (r *resets) Reset(k precise.Knowledge) {
	r.all = append(r.all, fmt.Sprint(k, " ", time.Since(r.start)))
}

// running lets a subscriber run until stop is called, which waits for its end.
func running(t *testing.T, sub *Subscriber) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { _ = sub.Run(ctx) })
	return func() { cancel(); run.Wait() }
}

// A replay that does not end is abandoned after ReplayWithin, whether it has begun or not, and
// the batches that come meanwhile wait for it.
func TestReplaysThatDoNotEnd(t *testing.T) {
	batch := func(number uint64) string {
		return command(1, "") + command(1, numbered(number)) + command(0, noEvents)
	}
	for next, begins := range []string{"", batch(0)} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			ended := make(chan time.Duration, 1)
			dial := func(_ context.Context, _, address string) (net.Conn, error) {
				here, there := net.Pipe()
				t.Cleanup(func() { there.Close() })
				if address == "events:1" {
					go io.Copy(io.Discard, there)
					go io.WriteString(there, greeting("PUB")+batch(uint64(next)))
					return here, nil
				}
				go io.WriteString(there, greeting("ROUTER")+begins)
				go func() {
					io.Copy(io.Discard, there)
					ended <- time.Since(start)
				}()
				return here, nil
			}
			sub := rig.Must(New(Config{Events: "events:1", Replay: "replay:1", Sink: &resets{start: start}, Dial: dial, ReplayWithin: 3 * time.Minute}))
			stop := running(t, sub)
			defer stop()
			time.Sleep(time.Hour)
			require.Len(t, ended, 1)
			require.Equal(t, 3*time.Minute, <-ended)
			s := sub.Stats()
			require.Equal(t, []any{uint64(1), uint64(1), Live, uint64(next + 1)}, []any{s.Replays, s.ReplaysFailed, s.State, s.Next})
		})
	}
}

// After a connection, the pauses between attempts begin anew and grow to five seconds. When
// nothing has been known for StaleAfter, the next engine is another, whatever its numbers.
func TestPausesAndStaleness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		const lives = time.Hour
		var attempts []time.Duration
		dial := func(context.Context, string, string) (net.Conn, error) {
			at := time.Since(start)
			number := uint64(0)
			switch attempts = append(attempts, at); {
			case len(attempts) == 4:
			case at > lives+2*time.Minute:
				number = 1 // the next
			default:
				return nil, errors.New("nobody is there")
			}
			here, there := net.Pipe()
			go io.Copy(io.Discard, there)
			go func() {
				io.WriteString(there, greeting("PUB")+command(1, "")+command(1, numbered(number))+command(0, noEvents))
				time.Sleep(lives)
				there.Close()
			}()
			return here, nil
		}
		sink := &resets{start: start}
		sub := rig.Must(New(Config{Events: "e:1", Sink: sink, Dial: dial}))
		stop := running(t, sub)
		time.Sleep(lives + 3*time.Minute)
		stop()
		const ms = time.Millisecond
		require.Equal(t, []time.Duration{0, 100 * ms, 300 * ms, 700 * ms}, attempts[:4])
		ended := lives + 700*ms
		for i, after := range []time.Duration{100, 300, 700, 1500, 3100, 6300, 11_300, 16_300} {
			require.Equal(t, ended+after*ms, attempts[4+i])
		}
		last := attempts[len(attempts)-1]
		require.Equal(t, []string{
			"whole 700ms", fmt.Sprint("nothing ", ended+30*time.Second), fmt.Sprint("partial ", last), fmt.Sprint("nothing ", lives+3*time.Minute),
		}, sink.all)
		time.Sleep(lives) // for the last connection to end
	})
}

// A batch that a replay has brought is not taken in again when it arrives, at the beginning or after a gap.
func TestABatchIsTakenInOnce(t *testing.T) {
	p := newProcess(100)
	for name := range 3 {
		p.publish(t, false, name)
	}
	s, _ := newStream(&p)
	late := p.publish(t, false, 3)
	s.message(late.number, late.payload) // the replay has all four
	require.EqualValues(t, 4, s.stats.Batches)
	for name := range 3 {
		p.publish(t, false, 4+name)
	}
	after := p.publish(t, false, 7)
	s.message(after.number, after.payload)
	require.Equal(t, []uint64{8, 8, 1}, []uint64{s.stats.Batches, s.stats.Events, s.stats.Gaps})
	s.message(after.number+1, p.publish(t, true, 7).payload)
	require.EqualValues(t, 9, s.stats.Batches)
	require.Zero(t, s.stats.Restarts)
}

// A Dial that panics ends neither Run nor the process: it is a connection that can't be made.
func TestADialThatPanicsIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempts atomic.Int32
		sub, err := New(Config{Events: "e:1", Sink: &resets{start: time.Now()}, Dial: func(context.Context, string, string) (net.Conn, error) {
			attempts.Add(1)
			panic("boom")
		}})
		require.NoError(t, err)
		stop := running(t, sub)
		time.Sleep(time.Second)
		require.EqualValues(t, 4, attempts.Load(), "at 0, 100, 300 and 700 ms")
		require.EqualError(t, sub.Stats().Err, "kvevents: Config.Dial panicked: boom")
		stop()
	})
}
