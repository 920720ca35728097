package health

import (
	"math"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/host"
)

// Result is how an attempt has ended.
type Result string

// The results of attempts.
const (
	Served    Result = "served"
	NotSent   Result = "unreachable" // no connection could be made
	Broken    Result = "broken"      // no answer, a late answer, or half of one
	Erred     Result = "error"       // 5xx, or a stream that is an error
	Full      Result = "full"        // 429, or a word that it is full
	Refused   Result = "refused"     // any other status from 400 on, usually the client's fault
	Canceled  Result = "canceled"    // the client went away, or time was up
	Undecided Result = "undecided"   // it has failed elsewhere, too
)

// Failed reports whether the endpoint has failed the request. A refusal is not
// a failure, and neither is being full.
func (r Result) Failed() bool { return r == NotSent || r == Broken || r == Erred }

// Attempt is one request at one endpoint, or one check of it. The zero Attempt is at none.
type Attempt struct {
	e     *endpoint
	heard uint64 // e.heard when it was sent
	spell uint32 // e.spell then
	out   bool   // the endpoint was out
	trial bool
	busy  bool  // of a check: requests were in flight
	err   error // why it failed; nil: not known

	lacking bool // it was refused for that
	lack    Lack
}

// Sent records that a request goes to an endpoint.
func (h *Health) Sent(id string, ref endpick.EndpointRef) Attempt {
	now := h.lock()
	defer h.mu.Unlock()
	a := h.attempt(id, ref)
	a.e.asked.begin(a.e, now)
	if a.out = a.e.current().Out(); a.out && !now.Before(a.e.nextTrial) {
		a.trial = true
		a.e.postpone(now)
	}
	return a
}

func (h *Health) attempt(id string, ref endpick.EndpointRef) Attempt {
	e := h.endpoint(id, ref)
	return Attempt{e: e, heard: e.heard.Load(), spell: e.spell}
}

// Because returns the attempt with the reason of its failure.
func (a Attempt) Because(err error) Attempt {
	a.err = err
	return a
}

// Heard records that the endpoint has sent something.
func (a Attempt) Heard() {
	a.e.heard.Add(1)
	if a.e.current() == Silent {
		h := a.e.h
		now := h.lock()
		defer h.mu.Unlock()
		if a.e.current() == Silent {
			a.e.comeBack(now)
		}
	}
}

// WasOut reports whether the endpoint was known to be out when the request was sent there.
func (a Attempt) WasOut() bool { return a.out }

// Unknown reports whether the endpoint has never answered anybody, nor passed a check: there may be no server behind it.
func (a Attempt) Unknown() bool {
	a.e.h.mu.Lock()
	defer a.e.h.mu.Unlock()
	return a.e.heard.Load() == 0 && !a.e.everPassed
}

// Stuck reports whether the endpoint has sent nothing to anybody since the
// request was sent there, or since Anew.
func (a Attempt) Stuck() bool { return a.e.heard.Load() == a.heard }

// Anew returns the attempt, of which Stuck and Overdue count from now on.
func (a Attempt) Anew() Attempt {
	a.heard = a.e.heard.Load()
	return a
}

// Patience is how long a request may wait for its first byte before it is
// overdue: twice the longest recent wait. 0: not known yet.
func (h *Health) Patience(stream bool) time.Duration {
	if h.seen[kind(stream)].Load() < minSeen {
		return 0
	}
	return max(minPatience, 2*time.Duration(h.slowest[kind(stream)].Load()))
}

// usual is how long an endpoint may well be silent while it has work: the longest recent wait, of
// those kinds of requests of which it is known.
func (h *Health) usual() time.Duration {
	least := time.Duration(math.MaxInt64)
	for k := range h.seen {
		if h.seen[k].Load() >= minSeen {
			least = min(least, time.Duration(h.slowest[k].Load()))
		}
	}
	if least == math.MaxInt64 {
		return minPatience
	}
	return max(minPatience, least)
}

// Waited teaches how long a request that was served has waited for its first byte. Call it before
// Heard: a wait at a silent endpoint says nothing about normal ones.
func (a Attempt) Waited(stream bool, d time.Duration) {
	if a.e.current() == Silent {
		return
	}
	a.e.h.seen[kind(stream)].Add(1)
	slowest := &a.e.h.slowest[kind(stream)]
	if old := slowest.Load(); d != time.Duration(old) { // about the last 128 count
		slowest.Store(max(int64(d), old-old/128))
	}
}

func kind(stream bool) int {
	if stream {
		return 1
	}
	return 0
}

// Overdue records that the request has waited for as long as Patience.
func (a Attempt) Overdue() {
	e, h := a.e, a.e.h
	now := h.lock()
	defer h.mu.Unlock()
	if !e.current().Out() && e.spell == a.spell && a.Stuck() {
		e.late(now, a.heard)
	}
}

// late counts what the endpoint has not answered in time.
func (e *endpoint) late(now time.Time, heard uint64) {
	e.list(now)
	if e.overdue.add(1, heard); e.overdue.n >= maxOverdue && !e.current().Out() {
		e.putOut(Silent, now, false)
		e.lastErr = nil // it is of another time
	}
}

// Ended records how the attempt has ended, when that is certain; see [Suspects]. After a refusal it
// reports whether another endpoint should be asked.
func (a Attempt) Ended(r Result) (ask bool) {
	e, h := a.e, a.e.h
	if r == Served && h.listed.Load() == 0 {
		return false
	}
	if r == NotSent && host.IsOwn(a.err) {
		r = Undecided
	}
	now := h.lock()
	defer h.mu.Unlock()
	switch r {
	case Served:
		if e.listed {
			a.served(now)
		}
	case Refused:
		e.list(now)
		e.refusals++
		return a.trial || a.knownToLack() || (a.lacking || e.refusals > 1) && e.opinions.Retry(now)
	case Canceled:
		e.asked.begin(e, now) // it may go on
	case Undecided:
		a.tryAgain(now)
	default:
		a.failed(r == NotSent, now)
	}
	return false
}

// Full records that the endpoint is full, or still loads, and has asked not to be asked again for so
// long; 0: it has not said for how long. That is about the client with this key; 0: about all.
func (a Attempt) Full(wait time.Duration, key uint64) {
	e, h := a.e, a.e.h
	now := h.lock()
	defer h.mu.Unlock()
	e.list(now)
	e.asked.begin(e, now)
	if until := now.Add(min(max(wait, fullFor), maxFull)); until.After(e.fullUntil) || key == 0 && e.fullKey != 0 {
		e.fullUntil, e.fullKey = until, key
	}
	a.tryAgain(now)
}

func (a Attempt) served(now time.Time) {
	e := a.e
	e.outcome(now)
	e.good, e.refusals = e.good+1, 0
	e.h.report(e, false)
	if e.current().Out() && e.spell == a.spell {
		e.comeBack(now)
	}
}

// failed counts a failure; certainly says that the request can't be the cause.
func (a Attempt) failed(certainly bool, now time.Time) {
	e := a.e
	e.lastErr = a.err
	if e.current().Out() || e.spell != a.spell {
		return // already known
	}
	e.h.report(e, true)
	e.list(now)
	e.outcome(now)
	e.bad++
	share := e.failures()
	switch {
	case certainly && !host.IsTimeout(a.err): // so that the next request is not sent there in vain
		e.putOut(Unreachable, now, false)
	case e.bad < minFailures || share < outShare:
	case certainly:
		e.putOut(Unreachable, now, true)
	case share >= outRatio*e.others(now):
		e.putOut(Failing, now, false)
	}
}

// tryAgain makes a trial not count.
func (a Attempt) tryAgain(now time.Time) {
	if e := a.e; a.trial && e.current().Out() && e.spell == a.spell {
		e.nextTrial = now
		e.backoff = max(e.backoff/2, firstBackoff)
	}
}

func (e *endpoint) fade(now time.Time) {
	for now.Sub(e.fadedAt) >= outcomesHalve && e.good+e.bad > 1e-3 {
		e.good, e.bad, e.fadedAt = e.good/2, e.bad/2, e.fadedAt.Add(outcomesHalve)
	}
	if e.good+e.bad <= 1e-3 {
		e.fadedAt = now
	}
}

// outcome makes room for one more outcome.
func (e *endpoint) outcome(now time.Time) {
	e.fade(now)
	e.good, e.bad = e.good*keepOutcome, e.bad*keepOutcome
}

// failures is the share of recent requests that failed.
func (e *endpoint) failures() float64 { return e.bad / max(e.good+e.bad, 1) }

// others is the mean share of failures of the other endpoints that are not out.
func (e *endpoint) others(now time.Time) float64 {
	sum, n := 0.0, e.h.count(now)-1
	for _, o := range e.h.known {
		switch {
		case o == e:
		case o.current().Out():
			n--
		default:
			o.fade(now)
			if o.bad >= 1 { // a single, faded failure says little
				sum += o.failures()
			}
		}
	}
	return sum / float64(max(n, 1))
}

// Suspects are the failed attempts of one request. Whether an endpoint or the request is at fault
// shows when the request has been sent elsewhere, or can't be.
type Suspects []suspect

type suspect struct {
	Attempt
	result Result
}

// Add records that an attempt has failed. That no connection could be made is certain.
func (s *Suspects) Add(a Attempt, r Result) {
	if r == NotSent {
		a.Ended(r)
		return
	}
	*s = append(*s, suspect{a, r})
}

// Served records that an endpoint has served the request: the others are at fault, or lack something.
func (s *Suspects) Served() {
	for _, f := range *s {
		if f.lacking {
			f.lacks()
		} else {
			f.Ended(Broken)
		}
	}
	*s = nil
}

// GivenUp records that nobody has served the request. If several have failed it, it may be at fault
// itself; if one has, alone says whether that counts, since no other could be asked.
func (s *Suspects) GivenUp(alone func(Result) bool) {
	for _, f := range *s {
		if len(*s) > 1 {
			f.Ended(Undecided)
		} else if alone(f.result) {
			f.Ended(Broken)
		}
	}
	*s = nil
}
