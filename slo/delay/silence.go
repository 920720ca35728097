package delay

import "time"

// silence is how long an endpoint that should have answered has not. Times are in
// nanoseconds.
//
// A server that has stopped answering gives no labels. But while requests wait
// there and none has been answered for more than patience times the longest
// expected wait, the next request is expected to wait for that much longer. An
// answer ends the silence. Requests that leave unanswered take their evidence with
// them: how long they waited is remembered, and fades as fast as it grew, so that
// the endpoint is tried again.
type silence struct {
	waiting      int
	since        int64 // last answer, or arrival of the first of them
	may          int64 // how long without an answer is expected
	remembered   int64
	rememberedAt int64
}

const (
	patience = 2
	// maxRemembered limits how long an endpoint counts as silent after the last
	// request has left it.
	maxRemembered = int64(15 * time.Second)
)

// wait records a request that is expected to be answered within so many
// milliseconds; zero is unknown.
func (s *silence) wait(now int64, expected float64) {
	if s.waiting == 0 {
		s.since, s.may = now, 0
	}
	s.waiting++
	s.may = max(s.may, int64(min(expected, maxLatency)*1e6)*patience)
}

// leave records that a request was answered, or left.
func (s *silence) leave(now int64, answered bool) {
	switch lasted := s.lasts(now); {
	case answered:
		s.since, s.remembered = now, 0
	case lasted > 0:
		s.remembered, s.rememberedAt = min(lasted, maxRemembered), now
	}
	s.waiting = max(s.waiting-1, 0)
}

// lasts returns how long the endpoint has been silent, or 0.
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

// asked is when the wait for an answer began, or now.
func (s *silence) asked(now int64) int64 {
	if s.waiting > 0 {
		return min(s.since, now)
	}
	return now
}
