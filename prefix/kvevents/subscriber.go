package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"net"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix/precise"
)

// Config says whose events a [Subscriber] reads. Events and Sink are needed; the zero
// value of everything else is its default.
type Config struct {
	// Events is the address of the engine's PUB socket, host:port, with tcp:// before it
	// or not. vLLM and SGLang publish on port 5557 and, for data-parallel ranks, on those
	// after it; see [RankAddress].
	Events string
	// Replay is the address of its ROUTER socket, which it opens where the replay_endpoint
	// of its configuration says. Empty: it has none; what is missed is lost.
	Replay string
	// Topic is what the names of the wanted topics begin with. Empty: all.
	Topic string
	// Sink takes the events in. It is called by one goroutine at a time.
	Sink Sink

	// StaleAfter is how long the engine may be out of reach until the sink is told that
	// nothing is known any more. Zero: 30 s.
	StaleAfter time.Duration
	// ReplayWithin bounds one replay. Zero: 30 s.
	ReplayWithin time.Duration
	// ResyncEvery is the least time between two replays from the beginning for blocks
	// that are unknown and should not be. Zero: one minute.
	ResyncEvery time.Duration
	// Reconnect is the first pause before another attempt to connect; it doubles up to
	// 5 s. Zero: 100 ms.
	Reconnect time.Duration
	// MaxMessage bounds a message, in bytes. Zero: 64 MiB.
	MaxMessage int
	// Dial connects. Nil: a [net.Dialer] that keeps connections alive.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

func (c *Config) validate() error {
	bad := func(field, reason string) error {
		return &endpick.ConfigError{Field: "kvevents.Config." + field, Reason: reason}
	}
	var err error
	if c.Events, err = dialAddress(c.Events); err != nil {
		return bad("Events", "is not host:port: "+err.Error())
	}
	if c.Replay != "" {
		if c.Replay, err = dialAddress(c.Replay); err != nil {
			return bad("Replay", "is not host:port: "+err.Error())
		}
	}
	switch {
	case c.Sink == nil:
		return bad("Sink", "is nil")
	case c.MaxMessage < 0:
		return bad("MaxMessage", "is negative")
	}
	if c.MaxMessage == 0 {
		c.MaxMessage = 64 << 20
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		usual time.Duration
	}{
		{"StaleAfter", &c.StaleAfter, 30 * time.Second}, {"ReplayWithin", &c.ReplayWithin, 30 * time.Second},
		{"ResyncEvery", &c.ResyncEvery, time.Minute}, {"Reconnect", &c.Reconnect, 100 * time.Millisecond},
	} {
		if *d.value < 0 {
			return bad(d.name, "is negative")
		}
		if *d.value == 0 {
			*d.value = d.usual
		}
	}
	if c.Dial == nil {
		dialer := net.Dialer{Timeout: handshakeWithin, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}}
		c.Dial = dialer.DialContext
	}
	return nil
}

// Stats is what a [Subscriber] has seen.
type Stats struct {
	State       State
	Knows       precise.Knowledge // what the sink was told last
	Next        uint64            // the number of the batch that is to come
	Connections uint64            // made so far
	Batches     uint64            // taken in, replayed ones too
	Events      uint64            // in them
	Gaps        uint64            // times that numbers were missing
	Lost        uint64            // batches that could not be had any more
	Replays     uint64            // asked for
	// ReplaysFailed are those that did not come to their end.
	ReplaysFailed uint64
	Restarts      uint64 // engines that came after the first
	Unknown       uint64 // events about blocks that should have been known
	Resyncs       uint64 // replays from the beginning because of that
	Malformed     uint64 // messages that could not be read
	Counts        Counts // what was strange in the others
	// Err is why there is no connection; nil if there is one.
	Err error
}

// Subscriber reads the events of one engine process. Make it with [New], let a goroutine
// of yours Run it, and end that by its context.
type Subscriber struct {
	config Config

	mu    sync.Mutex // guards what follows
	stats Stats
}

// New returns a subscriber, or an [endpick.ConfigError].
func New(config Config) (*Subscriber, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	return &Subscriber{config: config}, nil
}

// Stats returns a snapshot. It may be called while the subscriber runs.
func (s *Subscriber) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Run reads events until the context ends, over as many connections as that takes, and
// returns the context's error. It tells the sink that nothing is known at the end. It
// must be called once.
func (s *Subscriber) Run(ctx context.Context) error {
	st := &stream{
		sink: &told{Sink: s.config.Sink}, decoder: NewDecoder(), seed: maphash.MakeSeed(),
	}
	if s.config.Replay != "" {
		st.replay = func(from uint64, each func(uint64, []byte) bool) error {
			s.note(st, Replaying, nil)
			err := s.replay(ctx, from, each)
			s.note(st, Live, nil)
			return err
		}
	}
	var synced time.Time
	st.resync = func() bool {
		if time.Since(synced) < s.config.ResyncEvery {
			return false
		}
		synced = time.Now()
		return true
	}
	defer st.sink.Reset(precise.Nothing)
	pause := s.config.Reconnect
	lost := time.Now()
	for {
		read, err := s.session(ctx, st)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if read {
			pause, lost = s.config.Reconnect, time.Now()
		}
		s.note(st, Connecting, err)
		for end := time.Now().Add(pause); ; {
			wait := time.Until(end)
			stale := time.Until(lost.Add(s.config.StaleAfter))
			if stale <= 0 && st.begun {
				st.begun, st.next = false, 0
				st.sink.Reset(precise.Nothing)
				s.note(st, Connecting, err)
			}
			if wait <= 0 {
				break
			}
			if st.begun {
				wait = min(wait, max(stale, time.Millisecond))
			}
			timer := time.NewTimer(wait)
			select {
			case <-ctx.Done():
				timer.Stop()
				return ctx.Err()
			case <-timer.C:
			}
		}
		pause = min(2*pause, 5*time.Second)
	}
}

// told remembers what a sink was told.
type told struct {
	Sink
	knows precise.Knowledge
}

func (t *told) Reset(k precise.Knowledge) {
	t.knows = k
	t.Sink.Reset(k)
}

// note publishes what the stream has counted.
func (s *Subscriber) note(st *stream, state State, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	connections := s.stats.Connections
	if s.stats.State == Connecting && state != Connecting {
		connections++
	}
	s.stats = st.stats
	s.stats.State, s.stats.Err, s.stats.Connections = state, err, connections
	s.stats.Next, s.stats.Knows = st.next, st.sink.(*told).knows
}

// session is one connection. It reports whether it came to reading.
func (s *Subscriber) session(ctx context.Context, st *stream) (read bool, err error) {
	z, done, err := s.connect(ctx, s.config.Events, "SUB", "PUB", "XPUB")
	if err != nil {
		return false, err
	}
	defer done()
	if err := z.write(0, append([]byte{1}, s.config.Topic...)); err != nil {
		return false, err
	}
	s.note(st, Live, nil)
	st.connected()
	s.note(st, Live, nil)
	for {
		frames, err := z.read()
		if err != nil {
			return true, err
		}
		number, payload, end, ok := parseFrames(frames)
		if !ok || end {
			st.stats.Malformed++
		} else {
			st.message(number, payload)
		}
		s.note(st, Live, nil)
	}
}

// connect makes a connection that ends with the context, or with done.
func (s *Subscriber) connect(ctx context.Context, address, own string, peers ...string) (*conn, func(), error) {
	c, err := s.config.Dial(ctx, "tcp", address)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	done := func() {
		stop()
		c.Close()
	}
	z, err := handshake(c, own, peers, s.config.MaxMessage)
	if err != nil {
		done()
		return nil, nil, fmt.Errorf("kvevents: %s: %w", address, err)
	}
	return z, done, nil
}

var errReplayOrder = errors.New("kvevents: the sequence numbers of a replay do not increase")

// replay asks for batches from a number on.
func (s *Subscriber) replay(ctx context.Context, from uint64, each func(uint64, []byte) bool) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.ReplayWithin)
	defer cancel()
	z, done, err := s.connect(ctx, s.config.Replay, "DEALER", "ROUTER")
	if err != nil {
		return err
	}
	defer done()
	// A delimiter, as a REQ socket would send it, and the number.
	if err := z.write(flagMore, nil); err != nil {
		return err
	}
	if err := z.write(0, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return err
	}
	for least := from; ; {
		frames, err := z.read()
		if err != nil {
			return err
		}
		number, payload, end, ok := parseFrames(frames)
		switch {
		case end:
			return nil
		case !ok || number < least:
			return errReplayOrder
		}
		least = number + 1
		if !each(number, payload) {
			return nil
		}
	}
}
