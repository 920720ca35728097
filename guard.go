package endpick

import "fmt"

// Stages are the host's, and may panic. What panics loses its say in this
// decision, or does not hear of this event; the request goes on, and so do the
// other stages. Each call into a stage has a frame of its own here, whose
// deferred guard takes the panic, counts it and tells of it.

// guard is to be deferred around a call into a stage.
func (r *Router) guard(stage any) {
	if v := recover(); v != nil {
		r.counts.panics.Add(1)
		r.warn(&PanicError{Stage: nameOf(stage), Value: v})
	}
}

// nameOf is stageName for a stage that has panicked, and may again.
func nameOf(stage any) (name string) {
	defer func() {
		if recover() != nil {
			name = fmt.Sprintf("%T", stage)
		}
	}()
	return stageName(stage)
}

// warn tells the host; a Warn that panics itself has had its chance.
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

// withdraw tells admitters that a request which they have let in is not routed
// after all, or not yet.
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

// score reports whether the scorer came to its end.
func (r *Router) score(s Scorer, d *decision, left []Candidate, dst []float64) (ok bool) {
	defer r.guard(s)
	s.Score(&d.req, left, dst)
	return true
}

// pick returns −1 for a picker that panics.
func (r *Router) pick(p Picker, d *decision, left []Candidate, scores []float64) (chosen int) {
	chosen = -1
	defer r.guard(p)
	return p.Pick(&d.req, left, scores)
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

// explain asks a scorer for its reasons, if it can give any: for each candidate in
// words for people.
func (r *Router) explain(s Scorer, d *decision, left []Candidate, dst []string) {
	if x, ok := s.(interface {
		Explain(req *Request, candidates []Candidate, dst []string)
	}); ok {
		defer r.guard(s)
		x.Explain(&d.req, left, dst)
	}
}
