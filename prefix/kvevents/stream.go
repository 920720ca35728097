package kvevents

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"

	"github.com/endpick/endpick/prefix/precise"
)

// State is how far a [Subscriber] is with its engine's events.
type State uint8

const (
	// Connecting: there is no connection.
	Connecting State = iota
	// Replaying: missed batches are being requested.
	Replaying
	// Live: events arrive as they are published.
	Live
)

// String returns the name in lower case.
func (s State) String() string {
	return [...]string{"connecting", "replaying", "live", "unknown"}[min(s, Live+1)]
}

// Sink receives events; a [precise.Feed] is one.
type Sink interface {
	// Apply applies events, which are valid until it returns, and returns how many
	// concerned blocks that should be known and are not.
	Apply(events []precise.Event) (unknown int)
	// Reset forgets everything and sets how much is known from now on.
	Reset(knows precise.Knowledge)
}

// stream tracks the batch numbers of one engine process, without I/O. An engine numbers
// its batches from 0 and never sends one twice except in replays; a restarted one begins
// at 0 again.
type stream struct {
	sink    Sink
	decoder *decoder
	stats   Stats

	begun bool   // anything is known about the engine's cache
	next  uint64 // the next number expected of the last engine
	last  uint64 // a hash of the previous batch, by which the engine is recognized
	live  uint64 // 1 + the last number received on this connection; 0: none
	sure  bool   // the connection is known to be to the same engine

	// replay requests batches from a number on and calls each for them, in order,
	// until that returns false. Nil: the engine has no replay socket.
	replay func(from uint64, each func(number uint64, payload []byte) bool) error
	// resync reports whether a full replay is allowed now because blocks were unknown.
	resync func() bool
}

// connected is called for a new connection, and finds out what was missed. If the
// engine can't be asked, its first number will tell.
func (s *stream) connected() {
	s.live, s.sure = 0, false
	if s.replay == nil {
		return
	}
	s.sure = s.catchUp() == nil
}

// catchUp requests the missed batches and the one before them. An engine that doesn't
// have that one any more, or has another in its place, is not the same.
func (s *stream) catchUp() error {
	if s.next == 0 {
		return s.fromStart()
	}
	asked, same := false, false
	err := s.ask(s.next-1, func(number uint64, payload []byte) bool {
		if !asked {
			asked, same = true, number == s.next-1 && s.hash(payload) == s.last
			return same && s.begun
		}
		s.take(number, payload)
		return true
	})
	if err != nil || same && s.begun {
		return err
	}
	if !same {
		s.stats.Restarts++
	}
	return s.fromStart()
}

// fromStart applies all that the engine still has. It is the whole if it begins with
// the first batch.
func (s *stream) fromStart() error {
	s.forget()
	err := s.ask(0, func(number uint64, payload []byte) bool {
		s.take(number, payload)
		return true
	})
	if err == nil && !s.begun {
		s.reset(precise.Whole, 0) // it has published nothing yet
	}
	return err
}

// ask requests a replay and counts it.
func (s *stream) ask(from uint64, each func(uint64, []byte) bool) error {
	s.stats.Replays++
	err := s.replay(from, each)
	if err != nil {
		s.stats.ReplaysFailed++
	}
	return err
}

// stale says that what is known does not count any more. The next engine may be the same.
func (s *stream) stale() {
	s.begun = false
	s.know(precise.Nothing)
}

// forget says that the next batch is of another engine.
func (s *stream) forget() { s.begun, s.next = false, 0 }

func (s *stream) reset(knows precise.Knowledge, next uint64) {
	s.know(knows)
	s.begun, s.next = true, next
}

// know resets the sink.
func (s *stream) know(knows precise.Knowledge) {
	s.stats.Knows = knows
	s.sink.Reset(knows)
}

// take applies a batch, unless it is known already. It reports whether events concerned
// blocks that should have been known.
func (s *stream) take(number uint64, payload []byte) (vague bool) {
	switch {
	case !s.begun && number == 0:
		s.reset(precise.Whole, 0)
	case !s.begun:
		s.reset(precise.Partial, number)
	case number < s.next:
		return false // a duplicate
	case number > s.next:
		s.stats.Lost += number - s.next
		s.reset(precise.Partial, number)
	}
	s.next, s.last = number+1, s.hash(payload)
	s.stats.Batches++
	before := s.stats.Unknown
	err := s.decoder.decode(payload, func(events []precise.Event) {
		s.stats.Events++
		s.stats.Unknown += uint64(s.sink.Apply(events))
	})
	s.stats.Counts = s.decoder.counts
	if err != nil {
		// Its content is lost for good.
		s.stats.Malformed++
		s.know(precise.Partial)
		return false
	}
	return s.stats.Unknown > before
}

// message handles a message of the connection.
func (s *stream) message(number uint64, payload []byte) {
	// Numbers fall only if the engine has restarted.
	if number < s.live || s.live == 0 && !s.sure && number < s.next {
		s.stats.Restarts++
		s.forget()
	}
	s.live = number + 1
	switch {
	case s.replay == nil:
	case !s.begun && number > 0:
		_ = s.fromStart() // counted
	case s.begun && number > s.next:
		s.stats.Gaps++
		_ = s.catchUp() // counted; what is missing costs the knowledge
	}
	if s.take(number, payload) && s.replay != nil && s.resync() {
		s.stats.Resyncs++
		_ = s.fromStart() // counted
	}
}

func (s *stream) hash(payload []byte) uint64 { return maphash.Bytes(s.decoder.seed, payload) }

// parseFrames finds number and payload in a message. They follow a topic, and in a
// reply an empty delimiter before that; either may be missing.
func parseFrames(frames [][]byte) (number uint64, payload []byte, end, ok bool) {
	if n := len(frames); n >= 2 {
		payload, frames = frames[n-1], frames[:n-1]
		if last := frames[len(frames)-1]; len(last) == 8 {
			number = binary.BigEndian.Uint64(last)
			end := number == 1<<64-1 // whatever the payload: ATOM reports there what it has kept
			return number, payload, end, end || number < 1<<63
		}
	}
	// The first releases ended replays with empty frames.
	return 0, nil, len(bytes.Join(frames, nil)) == 0 && len(payload) == 0, false
}
