package kvevents

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/endpick/endpick/internal/check"
	"github.com/endpick/endpick/prefix/precise"
	"github.com/go-zeromq/zmq4"
)

// Config configures a [Subscriber]. Events and Sink are required; the zero value of
// everything else is its default.
type Config struct {
	// Events is the address of the engine's PUB socket, host:port, with or without
	// tcp://. vLLM and SGLang publish on port 5557 and, for data-parallel ranks, on those
	// after it; see [RankAddress].
	Events string
	// Replay is the address of its ROUTER socket, which is the replay_endpoint of the
	// engine's configuration. Empty: none; missed batches are lost.
	Replay string
	// Topic is a prefix of the topics to subscribe to. Empty: all.
	Topic string
	// Sink receives the events. It is called by one goroutine at a time.
	Sink Sink

	// StaleAfter is how long the engine may be unreachable before the sink is reset to
	// Nothing. Zero: 30 s.
	StaleAfter time.Duration
	// ReplayWithin limits the time of one replay. Zero: 30 s.
	ReplayWithin time.Duration
	// ResyncEvery is the least time between two full replays because of unknown
	// blocks. Zero: one minute.
	ResyncEvery time.Duration
	// Reconnect is the first pause before another attempt to connect; it doubles up to
	// 5 s. Zero: 100 ms.
	Reconnect time.Duration
	// MaxMessage limits the length of a message in bytes, which is allocated before it has
	// arrived. Zero: 64 MiB.
	MaxMessage int
	// Dial connects. Nil: a [net.Dialer] that keeps connections alive.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

func (c *Config) validate() error {
	var err error
	if c.Events, err = dialAddress(c.Events); err != nil {
		return check.Bad("kvevents.Config.Events", "is not host:port: %v", err)
	}
	if c.Replay != "" {
		if c.Replay, err = dialAddress(c.Replay); err != nil {
			return check.Bad("kvevents.Config.Replay", "is not host:port: %v", err)
		}
	}
	if c.Sink == nil {
		return check.Bad("kvevents.Config.Sink", "is nil")
	}
	if c.Dial == nil {
		dialer := net.Dialer{Timeout: handshakeWithin, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}}
		c.Dial = dialer.DialContext
	}
	return cmp.Or(
		check.Default("kvevents.Config.MaxMessage", &c.MaxMessage, 64<<20),
		check.Default("kvevents.Config.StaleAfter", &c.StaleAfter, 30*time.Second),
		check.Default("kvevents.Config.ReplayWithin", &c.ReplayWithin, 30*time.Second),
		check.Default("kvevents.Config.ResyncEvery", &c.ResyncEvery, time.Minute),
		check.Default("kvevents.Config.Reconnect", &c.Reconnect, 100*time.Millisecond),
	)
}

// Stats is a snapshot of a [Subscriber].
type Stats struct {
	State       State
	Knows       precise.Knowledge // what the sink knows
	Next        uint64            // number of the next batch
	Connections uint64            // connections made so far
	Batches     uint64            // batches received, including replayed ones
	Events      uint64            // events in them
	Gaps        uint64            // gaps in the numbers
	Lost        uint64            // batches that could not be recovered
	Replays     uint64            // replays requested
	// ReplaysFailed counts replays that did not complete.
	ReplaysFailed uint64
	Restarts      uint64 // engines after the first
	Unknown       uint64 // events about blocks that should have been known
	Resyncs       uint64 // full replays because of that
	Malformed     uint64 // unreadable messages
	Counts        Counts // oddities in the others
	// Err is why there is no connection; nil if there is one.
	Err error
}

// Subscriber reads the events of one engine process. Make it with [New], call Run in a
// goroutine of your own, and end that by canceling its context.
type Subscriber struct {
	config Config

	mu    sync.Mutex // guards the fields below
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

// Run reads events until the context ends, reconnecting as necessary, and returns the
// context's error. At the end it resets the sink to Nothing. It must be called once.
func (s *Subscriber) Run(ctx context.Context) error {
	st := &stream{sink: s.config.Sink, decoder: newDecoder()}
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
	defer st.know(precise.Nothing)
	pause := s.config.Reconnect
	var stale time.Time // when what is known will not count any more
	for {
		read, err := s.session(ctx, st)
		if read {
			pause, stale = s.config.Reconnect, time.Now().Add(s.config.StaleAfter)
		}
		wait := pause
		if left := time.Until(stale); st.begun && left <= 0 {
			st.stale()
		} else if st.begun {
			wait = min(wait, left)
		}
		pause = min(2*pause, 5*time.Second)
		s.note(st, Connecting, err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// note publishes the stream's counts.
func (s *Subscriber) note(st *stream, state State, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.stats.State, st.stats.Next, st.stats.Err = state, st.next, err
	s.stats = st.stats
}

// session is one connection. It reports whether anything was read.
func (s *Subscriber) session(ctx context.Context, st *stream) (read bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	z, err := s.connect(ctx, s.config.Events, zmq4.Sub)
	if err != nil {
		return false, err
	}
	if err := z.SendMsg(zmq4.NewMsg(append([]byte{1}, s.config.Topic...))); err != nil {
		return false, err
	}
	st.stats.Connections++
	st.connected()
	s.note(st, Live, nil)
	for {
		frames, err := receive(z)
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

// dial calls Config.Dial, in a goroutine where its panic would end the process.
func (s *Subscriber) dial(ctx context.Context, address string) (c net.Conn, err error) {
	defer func() {
		if v := recover(); v != nil {
			c, err = nil, fmt.Errorf("kvevents: Config.Dial panicked: %v", v)
		}
	}()
	return s.config.Dial(ctx, "tcp", address)
}

// connect makes a connection that is closed when the context ends.
func (s *Subscriber) connect(ctx context.Context, address string, own zmq4.SocketType) (*zmq4.Conn, error) {
	c, err := s.dial(ctx, address)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { c.Close() })
	z, err := open(c, own, s.config.MaxMessage)
	if err != nil {
		return nil, fmt.Errorf("kvevents: %s: %w", address, err)
	}
	return z, nil
}

var errReplayOrder = errors.New("kvevents: the sequence numbers of a replay do not increase")

// replay requests batches from a number on.
func (s *Subscriber) replay(ctx context.Context, from uint64, each func(uint64, []byte) bool) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.ReplayWithin)
	defer cancel()
	z, err := s.connect(ctx, s.config.Replay, zmq4.Dealer)
	if err != nil {
		return err
	}
	// A delimiter, as a REQ socket would send it, and the number.
	if err := z.SendMsg(zmq4.NewMsgFrom(nil, binary.BigEndian.AppendUint64(nil, from))); err != nil {
		return err
	}
	for least := from; ; {
		frames, err := receive(z)
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
