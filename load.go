package endpick

import (
	"math"
	"slices"
	"time"
)

// Signals is a set of the signals in an engine's report.
type Signals uint8

// The signals of a [Load].
const (
	WaitingSignal Signals = 1 << iota
	RunningSignal
	KVUsageSignal

	allSignals = WaitingSignal | RunningSignal | KVUsageSignal
)

// Load is what an engine reports about itself.
type Load struct {
	Waiting float64 // requests in its queue
	Running float64 // requests in its batch
	// KVUsage is the share of its KV cache that running requests hold, in [0, 1]. Blocks
	// that are only kept in case they are asked for again do not count.
	KVUsage float64

	// Absent lists the signals that the engine does not report; their fields
	// are not read.
	Absent Signals
	// Adapters are the adapters that are loaded now. Nil: not reported.
	Adapters []string
	// Mark is what [Router.Mark] returned when the engine was asked. The zero
	// Mark: the report is as fresh as the call of Report.
	Mark Mark
}

// clean returns the load without its broken signals, and an error that names
// the first of them.
func (l Load) clean(id string) (Load, error) {
	l.Adapters = slices.Clone(l.Adapters)
	var err error
	check := func(s Signals, name string, v, most float64) {
		if l.Absent&s != 0 || (v >= 0 && v <= most) {
			return
		}
		l.Absent |= s
		if err == nil {
			err = &LoadError{ID: id, Signal: name, Value: v}
		}
	}
	check(WaitingSignal, "waiting", l.Waiting, math.MaxInt32)
	check(RunningSignal, "running", l.Running, math.MaxInt32)
	check(KVUsageSignal, "KV usage", l.KVUsage, 1)
	return l, err
}

// Mark remembers what the router had in flight on an endpoint at one moment, so
// that a report requested at that moment can be corrected for what has been
// routed since. The zero Mark belongs to no moment.
type Mark struct {
	ref        Ref
	at         time.Time
	requests   int32
	prefilling int32
}

// report is a Load prepared for fast reading, on one cache line. It is immutable.
type report struct {
	at         time.Duration // when the engine was asked, since the router's epoch
	reported   Signals
	waiting    float64
	running    float64
	kvUsage    float64
	requests   int32 // in flight when the engine counted
	prefilling int32
	load       *Load // as reported
}

// prepare returns the report of a clean load. The engine counted at some time
// between the mark, when it was asked, and now, when it has answered. Requests
// that arrived in between may or may not be in its count: prepare assumes as
// many in it as the count has room for, so that none is counted twice.
func (l Load) prepare(at time.Duration, mark, now Mark) *report {
	rep := &report{at: at, reported: allSignals &^ l.Absent, load: &l}
	if rep.reported&WaitingSignal != 0 {
		rep.waiting = l.Waiting
	}
	if rep.reported&RunningSignal != 0 {
		rep.running = l.Running
	}
	if rep.reported&KVUsageSignal != 0 {
		rep.kvUsage = l.KVUsage
	}
	rep.requests, rep.prefilling = mark.requests, mark.prefilling
	if came := now.requests - mark.requests; came != 0 {
		counted := min(max(rep.waiting+rep.running, float64(min(mark.requests, now.requests))), float64(max(mark.requests, now.requests)))
		rep.requests = int32(counted)
		rep.prefilling += int32(math.Round(float64(now.prefilling-mark.prefilling) * float64(rep.requests-mark.requests) / float64(came)))
	}
	return rep
}

// Mark remembers what is in flight on an endpoint now. Take it when you ask an
// engine for its load, and put it into the Load that you make of the response:
// then what is routed in between is counted exactly once. The mark of an
// unknown ID belongs to no endpoint, and Report refuses it.
func (r *Router) Mark(id string) Mark {
	now := r.now()
	m, ok := r.member(id)
	if !ok {
		return Mark{at: now}
	}
	r.leases.expire(now)
	return m.state.mark(now)
}

// Report records what an engine reports about itself. Impossible signals are
// dropped, and a [LoadError] names the first of them; the others are used. A
// report that was requested before the current one is ignored. The error matches
// ErrUnknownEndpoint if the endpoint does not exist, or is not the one that the
// mark was taken of, as after it was replaced.
func (r *Router) Report(id string, load Load) error {
	now := r.now()
	m, ok := r.member(id)
	if !ok {
		return unknownEndpoint(id)
	}
	r.leases.expire(now)
	mark, answered := load.Mark, m.state.mark(now)
	if mark == (Mark{}) {
		mark = answered
	} else if mark.ref != m.state.ref {
		return &EndpointError{ID: id, Reason: "is not the one that the mark was taken of", err: ErrUnknownEndpoint}
	}
	load, err := load.clean(id)
	next := load.prepare(mark.at.Sub(r.epoch), mark, answered)
	for {
		held := m.state.report.Load()
		// A report from the future was made before the clock was set back.
		if held != nil && held.at > next.at && held.at <= now.Sub(r.epoch) {
			return err
		}
		if m.state.report.CompareAndSwap(held, next) {
			r.changed(m.state)
			return err
		}
	}
}

// Ref returns the handle of the endpoint that has this ID now, or false if
// there is none. It is for hosts that keep state for endpoints outside of
// stages.
func (r *Router) Ref(id string) (Ref, bool) {
	m, ok := r.member(id)
	if !ok {
		return Ref{}, false
	}
	return m.state.ref, true
}

func (r *Router) member(id string) (member, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ok := r.fleet.byID[id]
	return m, ok
}
