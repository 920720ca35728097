package health

import (
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
)

type phase uint8

const (
	well phase = iota
	out
	returning
)

// standing is what is known of one endpoint; health.mu guards it.
type standing struct {
	id  string
	ref endpick.Ref

	heard  atomic.Uint64 // grows with every byte or more; without the lock
	silent atomic.Bool   // put out for saying nothing

	gone      bool // it can't be reached: requests did not cause that
	listed    bool // in remarked
	phase     phase
	spell     uint32 // how many times it was put out
	good, bad float64
	fadedAt   time.Time

	refusals   int // since the last good answer
	opinions   Budget
	overdue    int // requests, while heard stood at overdueAt
	overdueAt  uint64
	backoff    time.Duration // the next one
	until      time.Time     // out: no trial before
	offeredAt  time.Time
	returnedAt time.Time
	credit     float64 // returning: the share of requests that was not used yet
	fullUntil  time.Time
}

// spared reports whether the next request is not among the share of an endpoint
// that is coming back.
func (s *standing) spared(now time.Time) bool {
	share := rampFrom + float64(now.Sub(s.returnedAt))/float64(rampTime)
	if share >= 1 || share < rampFrom { // it is back, or the clock was set back
		s.phase, s.backoff = well, 0
		return false
	}
	if s.credit += share; s.credit < 1 {
		return true
	}
	s.credit--
	return false
}

// fade makes old outcomes count less.
func (s *standing) fade(now time.Time) {
	for now.Sub(s.fadedAt) >= outcomesHalve && s.good+s.bad > 1e-3 {
		s.good, s.bad = s.good/2, s.bad/2
		s.fadedAt = s.fadedAt.Add(outcomesHalve)
	}
	if s.good+s.bad <= 1e-3 || now.Before(s.fadedAt) {
		s.fadedAt = now
	}
}

// outcome makes room for one more.
func (s *standing) outcome(now time.Time) {
	s.fade(now)
	s.good *= keepOutcome
	s.bad *= keepOutcome
}

func (s *standing) share() float64 { return s.bad / max(s.good+s.bad, 1) }

func (s *standing) putOut(now time.Time) {
	s.phase, s.gone = out, false
	s.spell++
	s.good, s.bad, s.refusals = 0, 0, 0
	s.wait(now)
}

// wait puts the next trial off.
func (s *standing) wait(now time.Time) {
	s.backoff = max(s.backoff, firstBackoff)
	s.until = now.Add(s.backoff)
	s.backoff = min(2*s.backoff, maxBackoff)
}

// tryAgain makes a trial not count.
func (s *standing) tryAgain(v Visit, now time.Time) {
	if v.trial && s.phase == out && s.spell == v.spell {
		s.until = now
		s.backoff = max(s.backoff/2, firstBackoff)
	}
}

func (s *standing) comeBack(now time.Time) {
	s.phase = returning
	s.returnedAt = now
	s.credit = 0
	s.good, s.bad, s.refusals = 1, 0, 0
	s.silent.Store(false)
}
