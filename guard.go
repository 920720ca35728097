package endpick

import (
	"fmt"
	"time"
)

// Stages belong to the host and may panic. A stage that panics is ignored for
// this decision or event; the request and the other stages go on. Each call
// into a stage has a function of its own here, whose deferred guard recovers
// the panic, counts it and reports it.

// guard must be deferred around a call into a stage.
func (r *Router) guard(stage any) {
	if v := recover(); v != nil {
		r.counts.panics.Add(1)
		r.warn(&PanicError{Stage: nameOf(stage), Value: v})
	}
}

// broke counts and reports that a stage broke its contract.
func (r *Router) broke(stage any, format string, args ...any) {
	r.counts.badStage.Add(1)
	if r.config.Warn != nil {
		r.warn(&StageError{Stage: nameOf(stage), Reason: fmt.Sprintf(format, args...)})
	}
}

// now is the time of Config.Clock. That panics in whatever goroutine asks, even where
// nothing would recover it, such as a poller's. What is returned instead is not ahead of
// a simulated clock, which runs faster: a leap ahead would end all leases.
func (r *Router) now() (at time.Time) {
	defer func() {
		if v := recover(); v != nil {
			r.counts.panics.Add(1)
			r.warn(&PanicError{Stage: "Config.Clock", Value: v})
			at = r.epoch.Add(time.Since(r.made))
		}
	}()
	return r.config.Clock()
}

// nameOf is stageName for a stage that may panic.
func nameOf(stage any) (name string) {
	defer func() {
		if recover() != nil {
			name = fmt.Sprintf("%T", stage)
		}
	}()
	return stageName(stage)
}

// warn calls Config.Warn, and ignores a panic of it.
func (r *Router) warn(err error) {
	if r.config.Warn != nil {
		defer func() { _ = recover() }()
		r.config.Warn(err)
	}
}

func (r *Router) match(m Matcher, d *decision) {
	defer r.guard(m)
	m.Match(&d.req, d.candidates)
}

func (r *Router) predict(p Predictor, d *decision, left []Candidate) {
	defer r.guard(p)
	p.Predict(&d.req, left)
}

func (r *Router) admit(a Admitter, d *decision, left []Candidate) error {
	defer r.guard(a)
	return a.Admit(&d.req, left)
}

// withdraw tells admitters that a request they admitted is not routed after
// all, or not yet.
func (r *Router) withdraw(admitted []Admitter, d *decision) {
	for _, a := range admitted {
		if w, ok := a.(interface{ Withdrawn(*Request) }); ok {
			r.withdrawn(w, d)
		}
	}
}

func (r *Router) withdrawn(w interface{ Withdrawn(*Request) }, d *decision) {
	defer r.guard(w)
	w.Withdrawn(&d.req)
}

func (r *Router) filter(f Filter, d *decision, left []Candidate) []Candidate {
	defer r.guard(f)
	return f.Filter(&d.req, left)
}

// score reports whether the scorer returned normally.
func (r *Router) score(s Scorer, d *decision, left []Candidate, dst []float64) (ok bool) {
	defer r.guard(s)
	s.Score(&d.req, left, dst)
	return true
}

// pick reports whether the picker returned normally.
func (r *Router) pick(p Picker, d *decision, left []Candidate, scores []float64) (chosen int, ok bool) {
	defer r.guard(p)
	return p.Pick(&d.req, left, scores), true
}

func (r *Router) routed(o RoutedObserver, e *Event) {
	defer r.guard(o)
	o.Routed(e)
}

func (r *Router) firstToken(o FirstTokenObserver, e *Event) {
	defer r.guard(o)
	o.FirstToken(e)
}

func (r *Router) done(o DoneObserver, e *Event, outcome *Outcome) {
	defer r.guard(o)
	o.Done(e, outcome)
}

func (r *Router) endpointRemoved(o EndpointObserver, ref Ref) {
	defer r.guard(o)
	o.EndpointRemoved(ref)
}

// explain asks a scorer that has an Explain method for its reasons.
func (r *Router) explain(s Scorer, d *decision, left []Candidate, dst []string) {
	if x, ok := s.(interface {
		Explain(req *Request, candidates []Candidate, dst []string)
	}); ok {
		defer r.guard(s)
		x.Explain(&d.req, left, dst)
	}
}
