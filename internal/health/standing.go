package health

import (
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
)

// standing is what is known of one endpoint; health.mu guards it.
type standing struct {
	id  string
	ref endpick.Ref

	heard  atomic.Uint64 // grows with every byte or more; without the lock
	silent atomic.Bool   // put out for saying nothing

	gone      bool // it can't be reached: requests did not cause that
	mute      bool // asking it takes long, and is in vain
	trials    int  // since it was put out
	listed    bool // in remarked
	phase     State
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

	// Failures that other gateways have told of, since heard stood so.
	toldOf    int
	toldAt    time.Time
	toldHeard uint64

	since  time.Time // of the phase; zero: ever
	reason Reason    // out: why
	err    error     // of the newest failure

	checkedAt time.Time // zero: never
	unfit     int       // checks that it has failed in a row
	checkErr  error     // of the newest check; nil: it has passed
	passed    bool      // it has passed one
	doubtful  bool      // it has failed as many as it takes
	ailing    bool      // and passed one before: it is out
	awaited   bool      // put out because checks have never reached it
}

// spared reports whether the next request is not among the share of an endpoint
// that is coming back.
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

// isAiling reports whether checks say that the endpoint is unfit. Where nobody checks
// any more they say nothing.
func (s *standing) isAiling(now time.Time) bool {
	return s.ailing && ahead(now, s.checkedAt.Add(checksCount), checksCount)
}

// fruitless reports whether asking an endpoint that is out takes long, and gives nothing.
func (s *standing) fruitless() bool {
	return s.mute || s.silent.Load() && s.trials >= vainTrials
}

// growth is the share of its traffic that an endpoint gets that is coming back.
func (s *standing) growth(now time.Time) float64 {
	return rampFrom + float64(now.Sub(s.returnedAt))/float64(rampTime)
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

func (s *standing) putOut(now time.Time, why Reason) {
	s.phase, s.gone, s.mute, s.awaited, s.trials = Out, false, false, false, 0
	s.since, s.reason = now, why
	s.spell++
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
