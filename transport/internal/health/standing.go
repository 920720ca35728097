package health

import (
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
)

// standing is what is known about one endpoint. Health.mu guards it.
type standing struct {
	id  string
	ref endpick.Ref

	heard  atomic.Uint64 // number of times that bytes arrived; atomic
	silent atomic.Bool   // out for sending nothing; atomic

	gone      bool // unreachable, which requests did not cause
	mute      bool // requests hang there
	trials    int  // since it was put out
	listed    bool // in remarked
	phase     State
	spell     uint32 // number of times it was put out
	good, bad float64
	fadedAt   time.Time

	refusals   int // since the last success
	opinions   Budget
	overdue    int // requests, while heard was overdueAt
	overdueAt  uint64
	backoff    time.Duration // before the next trial
	until      time.Time     // out: time of the next trial
	offeredAt  time.Time
	returnedAt time.Time
	credit     float64 // returning: unused fractions of a request
	fullUntil  time.Time

	// Failures reported by other gateways while heard had this value.
	toldOf    int
	toldAt    time.Time
	toldHeard uint64

	since  time.Time // of the phase; zero: always
	reason Reason    // out: the reason
	err    error     // of the latest failure

	checkedAt time.Time // zero: never
	unfit     int       // failed checks in a row
	checkErr  error     // of the latest check; nil: it passed
	passed    bool      // it has ever passed one
	doubtful  bool      // it has failed the number that counts
	ailing    bool      // doubtful, after having passed one before: it is out
	awaited   bool      // out because no check has ever reached it
}

// spared reports whether the next request is outside the share of a returning
// endpoint.
func (s *standing) spared(now time.Time) bool {
	share := s.growth(now)
	if share >= 1 || share < rampFrom { // it is back, or the clock was set back
		s.phase, s.backoff, s.since = Well, 0, now
		return false
	}
	if s.credit += share; s.credit < 1 {
		return true
	}
	s.credit--
	return false
}

// isAiling reports whether checks put the endpoint out. If checks have stopped, old
// ones say nothing.
func (s *standing) isAiling(now time.Time) bool {
	return s.ailing && ahead(now, s.checkedAt.Add(checksCount), checksCount)
}

// fruitless reports whether requests to an endpoint that is out hang.
func (s *standing) fruitless() bool {
	return s.mute || s.silent.Load() && s.trials >= vainTrials
}

// growth is the share of its traffic that a returning endpoint gets.
func (s *standing) growth(now time.Time) float64 {
	return rampFrom + float64(now.Sub(s.returnedAt))/float64(rampTime)
}

// fade reduces the weight of old outcomes.
func (s *standing) fade(now time.Time) {
	for now.Sub(s.fadedAt) >= outcomesHalve && s.good+s.bad > 1e-3 {
		s.good, s.bad = s.good/2, s.bad/2
		s.fadedAt = s.fadedAt.Add(outcomesHalve)
	}
	if s.good+s.bad <= 1e-3 || now.Before(s.fadedAt) {
		s.fadedAt = now
	}
}

// outcome makes room for one more outcome.
func (s *standing) outcome(now time.Time) {
	s.fade(now)
	s.good *= keepOutcome
	s.bad *= keepOutcome
}

func (s *standing) share() float64 { return s.bad / max(s.good+s.bad, 1) }

func (s *standing) putOut(now time.Time, why Reason) {
	s.phase, s.gone, s.mute, s.awaited, s.trials = Out, false, false, false, 0
	s.since, s.reason = now, why
	s.spell++
	s.wait(now)
}

// wait postpones the next trial.
func (s *standing) wait(now time.Time) {
	s.backoff = max(s.backoff, firstBackoff)
	s.until = now.Add(s.backoff)
	s.backoff = min(2*s.backoff, maxBackoff)
}

// tryAgain makes a trial not count.
func (s *standing) tryAgain(v Visit, now time.Time) {
	if v.trial && s.phase == Out && s.spell == v.spell {
		s.until = now
		s.backoff = max(s.backoff/2, firstBackoff)
	}
}

func (s *standing) comeBack(now time.Time) {
	s.phase = Returning
	s.returnedAt, s.since = now, now
	s.reason, s.ailing, s.doubtful, s.unfit = Fine, false, false, 0
	s.credit = 0
	s.good, s.bad, s.refusals = 1, 0, 0
	s.silent.Store(false)
}
