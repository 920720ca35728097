package kvevents

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/precise"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

// informed is an index that one feed informs about its only endpoint.
type informed struct {
	index *precise.Index
	ref   endpick.EndpointRef
	feed  *precise.Feed
}

func newInformed() informed {
	index := rig.Must(precise.New(precise.Config{}))
	router := rig.Must(endpick.New(endpick.Config{Policy: endpick.Policy{Matcher: index}, Endpoints: []endpick.Endpoint{{ID: "e"}}}))
	ref, _ := router.Ref("e")
	return informed{index, ref, rig.Must(index.Feed(ref, precise.FeedConfig{}))}
}

// cached is how much of a prompt the endpoint is known to hold.
func (i informed) cached(of prefix.Scope, prompt ...[]uint32) int {
	tokens := slices.Concat(prompt...)
	req := endpick.Request{Blocks: prefix.AppendTokens(nil, of.Seed(), tokens), Exact: true, InputTokens: len(tokens), BlockTokens: 16}
	candidates := []endpick.Candidate{{Ref: i.ref}}
	i.index.Match(&req, candidates)
	return candidates[0].PrefixTokens
}

// reading is a running subscriber, and the index that it feeds.
type reading struct {
	informed
	t   testing.TB
	sub *Subscriber
	end func()
}

func read(t testing.TB, e *engine) *reading {
	r := &reading{informed: newInformed(), t: t}
	r.sub = rig.Must(New(Config{Events: "tcp://events:1", Replay: "replay:1", Sink: r.feed, Dial: e.dial, Reconnect: time.Millisecond}))
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
	tokens := make([]uint32, 16*blocks+1)
	for i := range tokens {
		tokens[i] = uint32(first + i)
	}
	return r.cached(prefix.Scope{}, tokens)
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
			r := read(t, e)
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

			// Blocks after unknown ones are a reason to ask for all again, but only once in a minute.
			r.live(q)
			for name := range 2 {
				q.publish(false, store(77+name, 160, 110+name))
				r.until("it comes", func(s Stats) bool { return s.Next == q.next && s.State == Live })
				require.Equal(t, []uint64{1, 48}, []uint64{r.sub.Stats().Resyncs, uint64(r.held(0, 8))})
				require.Equal(t, precise.Partial, r.knows())
			}

			r.end()
			require.Equal(t, precise.Nothing, r.knows())
		})
	}
}

// prompts are batches as vLLM publishes them after a step, each with the blocks of one
// prompt stored and those of another removed. Names have 32 bytes.
func prompts(n, blocks int) (all [][]byte) {
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
		added, removed := store(nil, 0, make([]int, blocks)...), remove()
		added["block_hashes"], added["token_ids"], removed["block_hashes"] = came, tokens, went
		all = append(all, rig.Must(msgpack.Marshal([]any{1.5, []any{added, removed}, 0})))
	}
	return all
}

// BenchmarkSubscriber is the whole path: from a PUB socket over TCP into the index. It
// includes part of the publisher's time.
func BenchmarkSubscriber(b *testing.B) {
	const blocks = 32
	payloads := prompts(2000, blocks)
	e := &engine{}
	p := newPublisher(b, true, 1)
	e.is(p)
	r := read(b, e)
	r.live(p)
	p.keep = 0
	start := time.Now()
	// The socket queues without limit, so the publisher must not run ahead.
	for b.Loop() {
		p.publishRaw(false, payloads[p.next%uint64(len(payloads))])
		for p.next-r.sub.Stats().Next > 256 {
			time.Sleep(50 * time.Microsecond)
		}
	}
	require.Eventually(b, func() bool { return r.sub.Stats().Next == p.next }, time.Minute, time.Millisecond)
	b.ReportMetric(float64(b.N*blocks)/time.Since(start).Seconds(), "blocks/s")
	require.Zero(b, r.sub.Stats().Lost)
	r.end()
}

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
		return p.add(rig.Must(msgpack.Marshal([]any{1.5, []any{store(nil, 0, 1), map[string]any{"type": "Tomorrow"}, store(nil, 0, 2)}, 0})))
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
	require.Equal(t, []uint64{7, 14}, []uint64{s.stats.Batches, s.stats.Events}, "what a replay has brought counts once")
	s.message(b.number+1, b.payload)
	require.EqualValues(t, 8, s.stats.Batches)
	require.EqualValues(t, 1, s.stats.Restarts)

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
		all = append(all, p.publish(false, name))
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
	p.publish(false, 6)
	replays := s.stats.Replays
	sink.unknown = 1
	s.connected()
	require.Zero(t, sink.unknown)
	p.say(t, s, false, 7)
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
	c = Config{Events: "h:1", Sink: &resets{}, StaleAfter: 1, ReplayWithin: 2, ResyncEvery: 3, Reconnect: 4, MaxMessage: 5}
	require.NoError(t, c.validate())
	require.Equal(t, []any{time.Duration(1), time.Duration(2), time.Duration(3), time.Duration(4), 5, ""}, []any{c.StaleAfter, c.ReplayWithin, c.ResyncEvery, c.Reconnect, c.MaxMessage, c.Replay})
	for field, change := range map[string]func(*Config){
		"StaleAfter": func(c *Config) { c.StaleAfter = -1 }, "ReplayWithin": func(c *Config) { c.ReplayWithin = -1 }, "MaxMessage": func(c *Config) { c.MaxMessage = -1 },
		"Events": func(c *Config) { c.Events = "h" }, "Replay": func(c *Config) { c.Replay = "h" }, "Sink": func(c *Config) { c.Sink = nil },
		"ResyncEvery": func(c *Config) { c.ResyncEvery = -1 }, "Reconnect": func(c *Config) { c.Reconnect = -1 },
	} {
		c := good
		change(&c)
		require.Equal(t, "kvevents.Config."+field, rig.Field(New(c)))
	}
	require.Equal(t, []string{"connecting", "replaying", "live", "unknown"}, []string{Connecting.String(), Replaying.String(), Live.String(), (Live + 2).String()})
}

// A connection whose handshake fails is closed, and each successful one is counted
// once, whatever arrives over it.
func TestConnectionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dialed, attempts := make(chan *noted, 9), 0
		sub := rig.Must(New(Config{Events: "e:1", Sink: &resets{}, Dial: func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			says := "HTTP/1.1 400 Bad Request" + zeros48 // and it stays open: this side closes it
			if attempts++; attempts == 3 {
				says = greeting("PUB") + strings.Repeat(empty(0), 5)
				time.AfterFunc(time.Minute, func() { there.Close() })
			}
			go io.Copy(io.Discard, there)
			go io.WriteString(there, says)
			n := &noted{Conn: here}
			dialed <- n
			return n, nil
		}}))
		stop := running(t, sub)
		var all []*noted
		is := func(attempts int, open []int, connections uint64, state State) {
			t.Helper()
			synctest.Wait()
			for len(dialed) > 0 {
				all = append(all, <-dialed)
			}
			require.Len(t, all, attempts)
			for i, n := range all {
				require.Equal(t, !slices.Contains(open, i), n.closed.Load(), "%d", i)
			}
			s := sub.Stats()
			require.Equal(t, []any{connections, state}, []any{s.Connections, s.State})
		}
		is(1, nil, 0, Connecting)
		time.Sleep(100 * time.Millisecond)
		is(2, nil, 0, Connecting)
		time.Sleep(200 * time.Millisecond)
		is(3, []int{2}, 1, Live)
		require.EqualValues(t, 1, sub.Stats().Next)
		time.Sleep(time.Minute)
		is(3, nil, 1, Connecting)
		stop()
	})
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
	return rig.Running(t.Context(), func(ctx context.Context) { _ = sub.Run(ctx) })
}

// A replay that does not end is abandoned after ReplayWithin, whether it has begun or not, and one whose
// numbers fall is at once. The batches that come meanwhile wait for it.
func TestReplaysThatFail(t *testing.T) {
	for _, c := range []struct {
		begins string
		after  time.Duration
		next   uint64 // after the replay
	}{
		{"", 3 * time.Minute, 0}, {empty(0), 3 * time.Minute, 1}, {empty(5) + empty(6), 3 * time.Minute, 7},
		{empty(5) + empty(4), 0, 6}, {empty(5) + empty(5), 0, 6},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			ended := make(chan time.Duration, 1)
			dial := func(_ context.Context, _, address string) (net.Conn, error) {
				here, there := net.Pipe()
				t.Cleanup(func() { there.Close() })
				if address == "events:1" {
					go io.Copy(io.Discard, there)
					go io.WriteString(there, greeting("PUB")+empty(c.next))
					return here, nil
				}
				go io.WriteString(there, greeting("ROUTER")+c.begins)
				go func() {
					heard, _ := io.ReadAll(there)
					assert.Contains(t, string(heard), "Socket-Type\x00\x00\x00\x06DEALER")
					assert.True(t, strings.HasSuffix(string(heard), "\x01\x00\x00\x08"+numbered(0)))
					ended <- time.Since(start)
				}()
				return here, nil
			}
			sub := rig.Must(New(Config{
				Events: "events:1", Replay: "replay:1", Sink: &resets{start: start}, Dial: dial, ReplayWithin: 3 * time.Minute,
			}))
			stop := running(t, sub)
			defer stop()
			if time.Sleep(time.Minute); c.after > 0 {
				require.Equal(t, Replaying, sub.Stats().State)
			}
			time.Sleep(time.Hour)
			require.Len(t, ended, 1)
			require.Equal(t, c.after, <-ended)
			s := sub.Stats()
			require.Equal(t, []any{uint64(1), uint64(1), Live, c.next + 1}, []any{s.Replays, s.ReplaysFailed, s.State, s.Next})
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
				io.WriteString(there, greeting("PUB")+empty(number))
				time.Sleep(lives)
				there.Close()
			}()
			return here, nil
		}
		sink := &resets{start: start}
		stop := running(t, rig.Must(New(Config{Events: "e:1", Sink: sink, Dial: dial})))
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
