package kvevents

import (
	"bytes"
	"hash/maphash"

	"github.com/endpick/endpick/prefix/precise"
)

// State is how far a [Subscriber] is with its engine's events.
type State uint8

const (
	// Connecting: there is no connection yet, or not any more.
	Connecting State = iota
	// Replaying: what was missed is being asked for.
	Replaying
	// Live: events come in as they are published.
	Live
)

// String returns the name in lower case.
func (s State) String() string {
	switch s {
	case Connecting:
		return "connecting"
	case Replaying:
		return "replaying"
	case Live:
		return "live"
	}
	return "unknown"
}

// Sink takes in what is read; a [precise.Feed] is one.
type Sink interface {
	// Apply takes in events, which are good until it returns, and returns how many were
	// about blocks that should be known and are not.
	Apply(events []precise.Event) (unknown int)
	// Reset forgets everything and says how much is known from now on.
	Reset(knows precise.Knowledge)
}

// stream keeps the numbers of one engine process: it does no I/O. An engine numbers its
// batches from 0 and never sends one twice, but for replays; a restarted one begins at 0
// again.
type stream struct {
	sink    Sink
	decoder *Decoder
	seed    maphash.Seed
	batch   Batch
	stats   Stats

	begun bool   // something is known of the engine
	next  uint64 // the number that is to come
	last  uint64 // a hash of the batch before it, by which the engine is known again
	live  uint64 // one above the last number that came over this connection; 0: none has

	sure  bool // the connection is to the engine whose numbers these are
	vague bool // events were about blocks that should have been known

	// replay asks the engine for batches from a number on; nil: it can't be asked. It
	// calls back for each, in order, until that returns false.
	replay func(from uint64, each func(number uint64, payload []byte) bool) error
	// resync says whether the whole may be asked for again, because blocks were unknown.
	resync func() bool
}

// connected says that there is a new connection, and finds out what was missed. Where
// the engine can't be asked, the first number will tell.
func (s *stream) connected() {
	s.live, s.sure = 0, false
	if s.replay == nil {
		return
	}
	var err error
	if s.begun {
		err = s.catchUp()
	} else {
		err = s.fromStart()
	}
	s.sure = err == nil
	s.vague = false
}

// catchUp asks for what was missed and for the batch before it: an engine that doesn't
// have that any more, or another in its place, is not the one that it was.
func (s *stream) catchUp() error {
	if s.next == 0 {
		return s.fromStart()
	}
	same, first := false, true
	err := s.ask(s.next-1, func(number uint64, payload []byte) bool {
		if first {
			first = false
			same = number == s.next-1 && s.hash(payload) == s.last
			return same
		}
		s.take(number, payload)
		return true
	})
	if err != nil || same {
		return err
	}
	s.stats.Restarts++
	return s.fromStart()
}

// fromStart takes in all that the engine still has. It is the whole if that begins with
// its first batch.
func (s *stream) fromStart() error {
	s.begun, s.next = false, 0
	err := s.ask(0, func(number uint64, payload []byte) bool {
		s.take(number, payload)
		return true
	})
	if err == nil && !s.begun {
		s.reset(precise.Whole, 0) // it has published nothing yet
	}
	return err
}

// ask replays, and counts that.
func (s *stream) ask(from uint64, each func(uint64, []byte) bool) error {
	s.stats.Replays++
	err := s.replay(from, each)
	if err != nil {
		s.stats.ReplaysFailed++
	}
	return err
}

func (s *stream) reset(knows precise.Knowledge, next uint64) {
	s.sink.Reset(knows)
	s.begun, s.next = true, next
}

// take takes in a batch, unless it is known already.
func (s *stream) take(number uint64, payload []byte) {
	switch {
	case !s.begun && number == 0:
		s.reset(precise.Whole, 0)
	case !s.begun:
		s.reset(precise.Partial, number)
	case number < s.next:
		return // twice
	case number > s.next:
		s.stats.Lost += number - s.next
		s.reset(precise.Partial, number)
	}
	s.next, s.last = number+1, s.hash(payload)
	s.stats.Batches++
	if err := s.decoder.Decode(payload, &s.batch); err != nil {
		// What it said is lost, and nobody will say it again.
		s.stats.Malformed++
		s.sink.Reset(precise.Partial)
		return
	}
	s.stats.Counts.add(s.batch.Counts)
	s.stats.Events += uint64(len(s.batch.Events))
	if unknown := s.sink.Apply(s.batch.Events); unknown > 0 {
		s.stats.Unknown += uint64(unknown)
		s.vague = true
	}
}

// message takes in what came over the connection.
func (s *stream) message(number uint64, payload []byte) {
	// Numbers only rise, but in an engine that has started again.
	if number < s.live || s.live == 0 && !s.sure && s.begun && number < s.next {
		s.stats.Restarts++
		s.begun, s.next = false, 0
		if number > 0 && s.replay != nil {
			_ = s.fromStart() // counted; the number tells what it has not brought
		}
	}
	s.live = number + 1
	switch {
	case s.replay == nil:
	case !s.begun && number > 0:
		_ = s.fromStart() // counted
	case s.begun && number > s.next:
		s.stats.Gaps++
		_ = s.catchUp() // counted; what is missing still costs the knowledge
	}
	s.vague = false
	s.take(number, payload)
	if s.vague && s.replay != nil && s.resync() {
		s.stats.Resyncs++
		_ = s.fromStart() // counted
	}
}

func (s *stream) hash(payload []byte) uint64 { return maphash.Bytes(s.seed, payload) }

// parseFrames finds number and payload in a message. Before them are a topic, and in a
// reply an empty delimiter before that; one or both may be missing.
func parseFrames(frames [][]byte) (number uint64, payload []byte, end, ok bool) {
	if n := len(frames); n >= 2 {
		payload, frames = frames[n-1], frames[:n-1]
		if last := frames[len(frames)-1]; len(last) == 8 {
			for _, b := range last {
				number = number<<8 | uint64(b)
			}
			end := number == 1<<64-1 // whatever its payload is: ATOM says there what it has kept
			return number, payload, end, end || number < 1<<63
		}
	}
	// The first releases ended replays with empty frames.
	return 0, nil, len(bytes.Join(frames, nil)) == 0 && len(payload) == 0, false
}
