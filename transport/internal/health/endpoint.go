package health

import (
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
)

// endpoint is what is known about one endpoint: its state, and below it what the rules
// of [Health] count to change it. Health.mu guards it.
type endpoint struct {
	id     string
	ref    endpick.EndpointRef
	listed bool // in Health.known

	state  State
	since  time.Time // of the state; zero: since the endpoint became known
	reason Reason    // why it is out
	// spell is how often it was put out. Attempts that were sent in an earlier spell have
	// no effect on this one.
	spell   uint32
	lastErr error // of the latest failed request

	// Recent requests that were served and that failed; older ones count for less.
	good, bad float64
	fadedAt   time.Time

	heard        atomic.Uint64 // how often bytes have arrived from it; atomic
	silent       atomic.Bool   // out because none arrive; atomic
	overdue      int           // requests that have waited for too long while heard was:
	overdueHeard uint64

	fullUntil time.Time // it has answered 429
	refusals  int       // since it served a request
	opinions  Budget    // for asking another endpoint whether a refusal is right

	// While it is out.
	unreachable bool          // no connection can be made, whatever the request
	hangs       bool          // requests and checks time out
	trials      int           // so far
	nextTrial   time.Time     // when a request may be tried there
	backoff     time.Duration // from that trial to the one after it
	offeredAt   time.Time     // when a trial was offered to a request, which may go elsewhere

	// While it returns.
	returnedAt time.Time
	credit     float64 // the fraction of a request that it may have before its next one

	checks checks
	others reports
}

// checks are the active checks of an endpoint.
type checks struct {
	at     time.Time // of the latest; zero: never
	err    error     // of the latest; nil: it passed
	failed int       // in a row

	passed  bool // one has ever passed
	failing bool // so many have failed that it counts
	// unfit: it is out because checks fail that have passed before.
	unfit bool
	// absent: it is out because no check has ever reached it.
	absent bool
}

// reports are the failures that other gateways have reported of an endpoint while heard
// did not change.
type reports struct {
	failed int
	at     time.Time // of the latest
	heard  uint64
}

// holdBack reports whether the next request exceeds the share of a returning endpoint.
func (e *endpoint) holdBack(now time.Time) bool {
	share := e.growth(now)
	if share >= 1 || share < rampFrom { // it is back, or the clock was set back
		e.state, e.backoff, e.since = Well, 0, now
		return false
	}
	if e.credit += share; e.credit < 1 {
		return true
	}
	e.credit--
	return false
}

// unfit reports whether checks keep the endpoint out. If checks have stopped, old ones
// say nothing.
func (e *endpoint) unfit(now time.Time) bool {
	return e.checks.unfit && ahead(now, e.checks.at.Add(checksCount), checksCount)
}

// hanging reports whether requests would hang at an endpoint that is out.
func (e *endpoint) hanging() bool {
	return e.hangs || e.silent.Load() && e.trials >= silentTrials
}

// growth is the share of its traffic that a returning endpoint gets.
func (e *endpoint) growth(now time.Time) float64 {
	return rampFrom + float64(now.Sub(e.returnedAt))/float64(rampTime)
}

// fade reduces the weight of old outcomes.
func (e *endpoint) fade(now time.Time) {
	for now.Sub(e.fadedAt) >= outcomesHalve && e.good+e.bad > 1e-3 {
		e.good, e.bad = e.good/2, e.bad/2
		e.fadedAt = e.fadedAt.Add(outcomesHalve)
	}
	if e.good+e.bad <= 1e-3 || now.Before(e.fadedAt) {
		e.fadedAt = now
	}
}

// outcome makes room for one more outcome.
func (e *endpoint) outcome(now time.Time) {
	e.fade(now)
	e.good *= keepOutcome
	e.bad *= keepOutcome
}

// share is the share of recent requests that failed.
func (e *endpoint) share() float64 { return e.bad / max(e.good+e.bad, 1) }

func (e *endpoint) putOut(now time.Time, why Reason) {
	e.state, e.since, e.reason = Out, now, why
	e.unreachable, e.hangs, e.checks.absent, e.trials = false, false, false, 0
	e.spell++
	e.postpone(now)
}

// postpone postpones the next trial.
func (e *endpoint) postpone(now time.Time) {
	e.backoff = max(e.backoff, firstBackoff)
	e.nextTrial = now.Add(e.backoff)
	e.backoff = min(2*e.backoff, maxBackoff)
}

// tryAgain makes a trial not count.
func (e *endpoint) tryAgain(a Attempt, now time.Time) {
	if a.trial && e.state == Out && e.spell == a.spell {
		e.nextTrial = now
		e.backoff = max(e.backoff/2, firstBackoff)
	}
}

// comeBack lets the endpoint return: what put it out no longer counts.
func (e *endpoint) comeBack(now time.Time) {
	e.state, e.since, e.returnedAt, e.reason = Returning, now, now, Fine
	e.checks.unfit, e.checks.failing, e.checks.failed = false, false, 0
	e.credit = 0
	e.good, e.bad, e.refusals = 1, 0, 0
	e.silent.Store(false)
}

// suspect reports whether other gateways have recently reported failures.
func (e *endpoint) suspect(now time.Time) bool {
	return e.others.failed > 0 && ahead(now, e.others.at.Add(reportsCount), reportsCount)
}
