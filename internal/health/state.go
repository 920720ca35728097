package health

import (
	"errors"
	"time"

	"github.com/endpick/endpick"
)

// State is how an endpoint stands.
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
	Fine        Reason = iota // it is not
	Unreachable               // connections to it can't be made
	Failing                   // it fails requests that others serve
	Silent                    // it has sent nothing to anybody for long
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

// Status is how an endpoint stands at one moment.
type Status struct {
	State  State
	Reason Reason
	Since  time.Time // of the state; zero: as long as the endpoint is known
	// Share is the part of its usual traffic that it gets: 1 where it is well.
	Share float64
	// Err is what a request has failed of last there; nil: of nothing, or it is not
	// known. It is kept when the endpoint is well again.
	Err error
	// NextTrial is when a request is tried there. Zero: it is not out.
	NextTrial time.Time
	// Alive says that the endpoint may be able to serve a request: it is not out, or a
	// trial is due and no check says otherwise; and it has sent something, or not
	// failed its checks.
	Alive bool
	// Full says that it is being spared because it has answered 429.
	Full bool

	// Checked is when it was checked last; zero: never. CheckErr is what was wrong,
	// Failed how often in a row.
	Checked  time.Time
	CheckErr error
	Failed   int
}

// Status is how an endpoint stands.
func (h *Health) Status(id string, ref endpick.Ref) Status {
	now := h.clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.of.Find(ref)
	if at == nil || *at == nil {
		return Status{Share: 1, Alive: true}
	}
	s := *at
	st := Status{
		State: s.phase, Reason: s.reason, Since: s.since, Share: 1, Err: s.err, Full: ahead(now, s.fullUntil, fullFor),
		Checked: s.checkedAt, CheckErr: s.checkErr, Failed: s.unfit,
		Alive: !s.doubtful || s.heard.Load() > 0,
	}
	switch s.phase {
	case Out:
		st.Share, st.NextTrial = 0, s.until
		st.Alive = s.checkErr == nil && !ahead(now, s.until, maxBackoff)
	case Returning:
		st.Share = min(max(s.growth(now), 0), 1)
	}
	return st
}

// Check begins a check of an endpoint.
func (h *Health) Check(id string, ref endpick.Ref) Visit {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.standing(id, ref)
	return Visit{s: s, heard: s.heard.Load(), spell: s.spell}
}

// Checked takes in how a check has gone, nil: well. An endpoint that has failed most
// checks in a row is put out. One that has said nothing counts only if it has sent
// nothing to anybody meanwhile: who is busy serving may be late to say that he is
// well. An endpoint that has never passed one is judged by its requests alone, since
// it may be the check that is wrong; but while it has sent nothing to anybody, it is put
// out if no connection could be made ([Visit.Apart]), and tried like one that requests
// have found unreachable. What has only been waited for comes as if it were new. An
// endpoint that was put out by checks, or could not be reached, and passes one again is
// tried at once; one that fails requests is not well for passing checks.
func (h *Health) Checked(v Visit, err error, most int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, now := v.s, h.clock()
	s.checkedAt, s.checkErr = now, err
	if err == nil {
		switch {
		case s.phase != Out:
		case s.awaited && s.heard.Load() == 0:
			s.phase, s.reason, s.since, s.backoff = Well, Fine, now, 0
		case s.gone:
			s.until = now
		}
		s.passed, s.unfit, s.doubtful, s.ailing, s.mute = true, 0, false, false, false
		return
	}
	silent := isTimeout(err)
	if silent && s.heard.Load() != v.heard {
		s.checkErr = nil
		return
	}
	h.remark(s, now)
	s.unfit++
	s.doubtful = s.unfit >= most
	switch {
	case !s.doubtful:
	case s.passed:
		if s.phase != Out {
			s.putOut(now, Unfit)
		}
		s.gone, s.ailing, s.mute = true, true, silent
	case v.apart && s.heard.Load() == 0 && s.phase != Out:
		s.putOut(now, Unreachable)
		s.gone, s.mute, s.awaited = true, silent, true
	}
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}
