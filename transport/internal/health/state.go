package health

import (
	"errors"
	"time"

	"github.com/endpick/endpick"
)

// State is the state of an endpoint.
type State uint8

// The states.
const (
	Well      State = iota // it gets its share
	Out                    // it is avoided
	Returning              // it gets a growing share
)

// String returns the state in lower case.
func (s State) String() string {
	switch s {
	case Out:
		return "out"
	case Returning:
		return "returning"
	}
	return "well"
}

// Reason is why an endpoint is out.
type Reason uint8

// The reasons.
const (
	Fine        Reason = iota // it is not out
	Unreachable               // connections to it can't be made
	Failing                   // it fails requests that others serve
	Silent                    // it has sent nothing to anybody for a long time
	Unfit                     // it fails its checks
)

// String returns the reason in a word or two; empty for Fine.
func (r Reason) String() string {
	switch r {
	case Unreachable:
		return "unreachable"
	case Failing:
		return "failing"
	case Silent:
		return "silent"
	case Unfit:
		return "unfit"
	}
	return ""
}

// Status is the health of an endpoint at one moment.
type Status struct {
	State  State
	Reason Reason
	Since  time.Time // of the state; zero: since the endpoint became known
	// Share is the part of its usual traffic that it gets: 1 if it is well.
	Share float64
	// Err is the error of the last failed request; nil: none, or not known. It is
	// kept after a recovery.
	Err error
	// NextTrial is when a request will be tried there. Zero: it is not out.
	NextTrial time.Time
	// Alive says that the endpoint may be able to serve a request: it is not out, or a
	// trial is due and no check says otherwise; and it has sent something, or not
	// failed its checks.
	Alive bool
	// Full says that it is being avoided because it has answered 429.
	Full bool

	// Checked is the time of the last check; zero: never. CheckErr is its error,
	// and Failed the number of failed checks in a row.
	Checked  time.Time
	CheckErr error
	Failed   int
}

// Status returns the health of an endpoint.
func (h *Health) Status(id string, ref endpick.EndpointRef) Status {
	now := h.clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.of.Find(ref)
	if at == nil || *at == nil {
		return Status{Share: 1, Alive: true}
	}
	e := *at
	st := Status{
		State: e.state, Reason: e.reason, Since: e.since, Share: 1, Err: e.lastErr, Full: ahead(now, e.fullUntil, fullFor),
		Checked: e.checks.at, CheckErr: e.checks.err, Failed: e.checks.failed,
		Alive: !e.checks.failing || e.heard.Load() > 0,
	}
	switch e.state {
	case Out:
		st.Share, st.NextTrial = 0, e.nextTrial
		st.Alive = e.checks.err == nil && !ahead(now, e.nextTrial, maxBackoff)
	case Returning:
		st.Share = min(max(e.growth(now), 0), 1)
	}
	return st
}

// Check begins a check of an endpoint.
func (h *Health) Check(id string, ref endpick.EndpointRef) Attempt {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.endpoint(id, ref)
	return Attempt{e: e, heard: e.heard.Load(), spell: e.spell}
}

// Checked records the result of a check; nil: passed. An endpoint that has failed most
// checks in a row is put out. A check without an answer counts only if the endpoint has
// sent nothing to anybody meanwhile, because a busy server may be late. An endpoint that
// has never passed one is known by its requests alone, since the check may be wrong;
// but while it has sent nothing to anybody, it is put out if no connection could be made
// ([Attempt.NoConnection]), and tried like one that requests have found unreachable. If it then
// appears, it counts as new. An endpoint that was put out by checks, or could not be
// reached, is tried at once when it passes one; one that fails requests is not well just
// because it passes checks.
func (h *Health) Checked(a Attempt, err error, most int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e, now := a.e, h.clock()
	e.checks.at, e.checks.err = now, err
	if err == nil {
		switch {
		case e.state != Out:
		case e.checks.absent && e.heard.Load() == 0:
			e.state, e.reason, e.since, e.backoff = Well, Fine, now, 0
		case e.unreachable:
			e.nextTrial = now
		}
		e.checks.passed, e.checks.failed, e.checks.failing, e.checks.unfit, e.hangs = true, 0, false, false, false
		return
	}
	silent := isTimeout(err)
	if silent && e.heard.Load() != a.heard {
		e.checks.err = nil
		return
	}
	h.list(e, now)
	e.checks.failed++
	e.checks.failing = e.checks.failed >= most
	switch {
	case !e.checks.failing:
	case e.checks.passed:
		if e.state != Out {
			e.putOut(now, Unfit)
		}
		e.unreachable, e.checks.unfit, e.hangs = true, true, silent
	case a.noConnection && e.heard.Load() == 0 && e.state != Out:
		e.putOut(now, Unreachable)
		e.unreachable, e.hangs, e.checks.absent = true, silent, true
	}
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}
