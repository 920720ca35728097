package health

import (
	"time"

	"github.com/endpick/endpick"
)

// State is a row of the table of [Health].
type State uint8

// The states.
const (
	Well        State = iota // it gets its share
	Returning                // it gets a growing share
	Failing                  // out: it fails requests that others serve
	Silent                   // out: it has sent nothing to anybody for a long time; it may be busy
	Unreachable              // out: connections to it can't be made
	Unfit                    // out: it fails its checks
	absent                   // shown as unreachable
)

// Out reports whether the endpoint is avoided.
func (s State) Out() bool { return s >= Failing }

// certain reports whether an endpoint fails whatever it is sent: then it is avoided however many
// others are, and a check that passes makes a trial due.
func (s State) certain() bool { return s >= Unreachable }

// String returns the state in a word.
func (s State) String() string {
	return [...]string{"well", "returning", "failing", "silent", "unreachable", "unfit", "unreachable"}[min(s, absent)]
}

// Status is the health of an endpoint at one moment.
type Status struct {
	State State
	Since time.Time // of the state; zero: since the endpoint became known
	// Share is the part of its usual traffic that it gets: 1 if it is well.
	Share float64
	// Err is the error of the last failed request since it last returned, or turned silent;
	// nil: none, or not known.
	Err error
	// NextTrial is when a request will be tried there. Zero: it is not out.
	NextTrial time.Time
	// Alive says that the endpoint may be able to serve a request: it is not out, or is
	// silent, or a trial is due and no check says otherwise; and it has sent something, or
	// not failed its checks.
	Alive bool
	// Full says that it is being avoided because it has said that it is full, or loads.
	Full bool

	// Checked is the time of the last check; zero: never. CheckErr is its error,
	// and Failed the number of failed checks in a row.
	Checked  time.Time
	CheckErr error
	Failed   int
}

// Status returns the health of an endpoint.
func (h *Health) Status(ref endpick.EndpointRef) Status {
	now := h.lock()
	defer h.mu.Unlock()
	at := h.of.Find(ref)
	if at == nil || *at == nil {
		return Status{Share: 1, Alive: true}
	}
	e := *at
	st := Status{
		State: e.current(), Since: e.since, Share: min(e.share(now), 1), Err: e.lastErr,
		Full: now.Before(e.fullUntil), Checked: e.checkedAt, CheckErr: e.checkErr, Failed: e.failed,
		Alive: e.failed < h.failures || e.heard.Load() > 0,
	}
	switch {
	case st.State == absent:
		st.State = Unreachable
	case st.State == Returning && st.Share == 1: // though no request has come since
		st.State = Well
	}
	if st.State.Out() {
		st.NextTrial = e.nextTrial
		st.Alive = st.State == Silent || e.checkErr == nil && !now.Before(e.nextTrial)
	}
	return st
}
