package delay

import (
	"math"
	"time"
)

// silence is for how long an endpoint that should have answered has not. Times are
// in nanoseconds.
//
// A server that has stopped answering gives no labels. While requests wait there
// and nobody was answered for more than patience times as long as the slowest of
// them was expected to take at most, what comes next is expected to wait for that
// much longer. An answer ends it. Requests that leave unanswered take their
// evidence with them: what they have waited for is remembered, and fades as fast as
// it grew, so that the endpoint is tried again.
type silence struct {
	waiting      int
	since        int64 // of the last answer, or of when the first of them came
	may          int64 // for how long nobody may be answered
	remembered   int64
	rememberedAt int64
}

const (
	patience = 2
	// maxRemembered bounds for how long an endpoint is held to be silent after the
	// last request has left it.
	maxRemembered = int64(15 * time.Second)
)

// wait notes a request that is expected to be answered within so many
// milliseconds; zero is unknown.
func (s *silence) wait(now int64, expected float64) {
	if s.waiting == 0 {
		s.since, s.may = now, 0
	}
	s.waiting++
	s.may = max(s.may, int64(min(expected, maxLatency)*1e6)*patience)
}

// leave notes that a request was answered, or went away.
func (s *silence) leave(now int64, answered bool) {
	switch lasted := s.lasts(now); {
	case answered:
		s.since, s.remembered = now, 0
	case lasted > 0:
		s.remembered, s.rememberedAt = min(lasted, maxRemembered), now
	}
	s.waiting = max(s.waiting-1, 0)
}

// lasts returns for how long the endpoint has been silent, 0 if it is not.
func (s *silence) lasts(now int64) int64 {
	var lasted int64
	if quiet := now - s.since; s.waiting > 0 && s.may > 0 && quiet > s.may {
		lasted = quiet
	}
	if s.remembered > 0 {
		lasted = max(lasted, s.remembered-max(0, now-s.rememberedAt))
	}
	return lasted
}

// awake is until when lasts is 0 whatever the time, as things stand.
func (s *silence) awake() int64 {
	switch {
	case s.remembered > 0:
		return math.MinInt64
	case s.waiting > 0 && s.may > 0:
		return s.since + s.may
	}
	return math.MaxInt64
}

// asked is since when an answer is awaited; now if none is.
func (s *silence) asked(now int64) int64 {
	if s.waiting > 0 {
		return min(s.since, now)
	}
	return now
}
