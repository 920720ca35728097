package endpick

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime/debug"
	"slices"
	"sync/atomic"
)

// guard calls what the host has supplied: the stages of its policies, its clock and its
// Warn. All of them may panic. A stage that does is ignored for this decision or event;
// the request and the other stages go on.
type guard struct {
	clock
	warn func(error)

	panics, broken, undecided atomic.Uint64
}

// call calls into a stage. If that panics, it returns what the host is to hear when no lock
// is held.
func (g *guard) call(stage any, call func()) (failure error) {
	defer func() {
		if v := recover(); v != nil {
			g.panics.Add(1)
			failure = &PanicError{Stage: nameOf(stage), Value: v, Stack: debug.Stack()}
		}
	}()
	call()
	return nil
}

// try calls into a stage. If that panics, it reports so and returns false. No lock is held.
func (g *guard) try(stage any, call func()) (ok bool) {
	failure := g.call(stage, call)
	g.notify(failure)
	return failure == nil
}

// breach counts and reports that a stage broke its contract.
func (g *guard) breach(stage any, format string, args ...any) {
	g.broken.Add(1)
	if g.warn != nil {
		g.notify(&StageError{Stage: nameOf(stage), Reason: fmt.Sprintf(format, args...)})
	}
}

// notify calls Config.Warn, and ignores a panic of it. No lock is held, since Warn may call the
// router.
func (g *guard) notify(err error) {
	if g.warn != nil && err != nil {
		defer func() { _ = recover() }()
		g.warn(err)
	}
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

// stageName is the stage's name in receipts: that of its Name method, or its type.
func stageName(stage any) string {
	if n, ok := stage.(interface{ Name() string }); ok {
		return n.Name()
	}
	return fmt.Sprintf("%T", stage)
}

// pipeline is a validated Policy: weights normalised, names and observers
// collected. It is immutable.
type pipeline struct {
	Policy
	*guard
	stages            []any // each once, if comparable
	weights           []float64
	filterNames       []string
	scorerNames       []string
	routed            []RoutedObserver
	firstToken        []FirstTokenObserver
	done              []DoneObserver
	endpointObservers []EndpointObserver
}

// newPipeline validates a policy.
func newPipeline(policy Policy, g *guard) (*pipeline, error) {
	p := &pipeline{Policy: policy, guard: g}
	p.Admitters = slices.Clone(policy.Admitters)
	p.Filters = slices.Clone(policy.Filters)
	p.Scorers = slices.Clone(policy.Scorers)
	p.Picker = cmp.Or[Picker](p.Picker, MaxScore{})

	var stages []any
	var err error // the first
	add := func(field string, stage any) {
		stages = append(stages, stage)
		err = cmp.Or(err, notNil(field, stage))
	}
	if p.Matcher != nil {
		add("Policy.Matcher", p.Matcher)
	}
	if p.Predictor != nil {
		add("Policy.Predictor", p.Predictor)
	}
	for i, a := range p.Admitters {
		add(fmt.Sprintf("Policy.Admitters[%d]", i), a)
	}
	for i, f := range p.Filters {
		add(fmt.Sprintf("Policy.Filters[%d]", i), f)
	}
	for i, w := range p.Scorers {
		add(fmt.Sprintf("Policy.Scorers[%d].Scorer", i), w.Scorer)
	}
	add("Policy.Picker", p.Picker)
	if err != nil {
		return nil, err
	}

	for _, f := range p.Filters {
		p.filterNames = append(p.filterNames, stageName(f))
	}
	for _, w := range p.Scorers {
		p.scorerNames = append(p.scorerNames, stageName(w.Scorer))
	}
	if p.weights, err = shares(p.Scorers); err != nil {
		return nil, err
	}
	p.collect(stages)
	for _, s := range p.stages {
		if v, ok := s.(interface{ Validate() error }); ok {
			if err := v.Validate(); err != nil {
				return nil, newStageError(s, err)
			}
		}
	}
	return p, nil
}

// notNil refuses a stage that is nil, or a nil pointer or function.
func notNil(field string, stage any) error {
	v := reflect.ValueOf(stage)
	switch v.Kind() {
	case reflect.Invalid:
		return &ConfigError{Field: field, Reason: "is nil"}
	case reflect.Pointer, reflect.Func:
		if v.IsNil() {
			return &ConfigError{Field: field, Reason: fmt.Sprintf("is a nil %T", stage)}
		}
	}
	return nil
}

// shares returns the scorers' weights, scaled so that their sum is 1.
func shares(scorers []Weighted) ([]float64, error) {
	var largest, sum float64
	for i, w := range scorers {
		if !(w.Weight > 0) || math.IsInf(w.Weight, 1) {
			return nil, &ConfigError{
				Field:  fmt.Sprintf("Policy.Scorers[%d].Weight", i),
				Reason: fmt.Sprintf("is %v; leave a scorer out to switch it off", w.Weight),
			}
		}
		largest = max(largest, w.Weight)
	}
	weights := make([]float64, len(scorers))
	for i, w := range scorers {
		weights[i] = w.Weight / largest // dividing first keeps the sum from overflowing
		sum += weights[i]
	}
	for i := range weights {
		weights[i] /= sum
	}
	return weights, nil
}

// stageError is an error that a stage's Validate has returned.
type stageError struct {
	*ConfigError
	err error
}

func newStageError(stage any, err error) error {
	named := &ConfigError{Field: "Policy", Reason: fmt.Sprintf("has stage %s, which is not valid: %v", stageName(stage), err)}
	if c, ok := err.(*ConfigError); ok { // it names the field
		named = &ConfigError{Field: c.Field, Reason: fmt.Sprintf("%s (stage %s)", c.Reason, stageName(stage))}
	}
	return &stageError{named, err}
}

// Unwrap returns a ConfigError that names the stage, and the stage's own error.
func (e *stageError) Unwrap() []error { return []error{e.ConfigError, e.err} }

// collect lists the policy's stages and those that they return from Observer, each once,
// however often the policy has it, and which of them observe.
func (p *pipeline) collect(stages []any) {
	direct := len(stages)
	var seen []any
	for i := 0; i < len(stages); i++ { // stages grows meanwhile
		s := stages[i]
		if s == nil {
			continue
		}
		if several, ok := s.([]any); ok {
			stages = append(stages, several...)
			continue
		}
		comparable := reflect.ValueOf(s).Comparable()
		if comparable {
			if slices.Contains(seen, s) {
				continue
			}
			seen = append(seen, s)
		}
		p.stages = append(p.stages, s)
		// A value that can't be compared might return itself forever.
		if part, ok := s.(interface{ Observer() any }); ok && (i < direct || comparable) {
			stages = append(stages, part.Observer())
		}
		if o, ok := s.(RoutedObserver); ok {
			p.routed = append(p.routed, o)
		}
		if o, ok := s.(FirstTokenObserver); ok {
			p.firstToken = append(p.firstToken, o)
		}
		if o, ok := s.(DoneObserver); ok {
			p.done = append(p.done, o)
		}
		if o, ok := s.(EndpointObserver); ok {
			p.endpointObservers = append(p.endpointObservers, o)
		}
	}
}

// decision is the working memory of one Route. Its slices are reused.
type decision struct {
	req        Request
	pool       []member    // what the candidates are made of, ordered by slot
	candidates []Candidate // of all that the request could go to
	adopted    int         // the index of the one that has the request already, if it is adopted
	left       []bool      // by slot: the request leaves it out
	excluded   int         // members of the pool excluded by the request
	avoided    []Candidate // of the pool, avoided by the request
	limited    bool        // operators have set something
	// Members of the pool that are full, whose context is too short, and of later tiers.
	full, short, later int
	longest            int // context of those, if the prompt fits none

	scores []float64 // of the candidates that filters leave
	one    []float64 // of a single scorer
	cuts   []int     // how many candidates each filter left
	each   []float64 // scores by scorer, then candidate; for a receipt only
	// undecided are the filters without an opinion, likewise.
	undecided []string
	broken    []int // the filters that are left out because they broke the candidates
}

// grow makes room for n candidates.
func (d *decision) grow(n int) {
	if cap(d.candidates) < n {
		n += n/4 + 8
		d.candidates, d.scores, d.one = make([]Candidate, n), make([]float64, n), make([]float64, n)
	}
}

// forget drops what the caller owns, and what belongs to this request alone.
func (d *decision) forget() {
	d.req, d.pool, d.avoided, d.broken = Request{}, nil, nil, d.broken[:0]
	d.excluded, d.full, d.short, d.later = 0, 0, 0, 0
}

// errBroken says that a filter has broken the candidates: to be gathered and chosen from again, without it.
var errBroken = errors.New("a filter has broken the candidates")

// sum is the same for the same candidates in any order.
func sum(candidates []Candidate) (n uint64) {
	for i := range candidates {
		if c := &candidates[i]; c.Endpoint != nil {
			n += mix(uint64(c.Ref.Slot) + 1)
		}
	}
	return n
}

// ordered reports whether these are candidates in the order in which they were gathered, each there once.
func ordered(candidates []Candidate) bool {
	for i := range candidates {
		if candidates[i].Endpoint == nil || i > 0 && candidates[i].Ref.Slot <= candidates[i-1].Ref.Slot {
			return false
		}
	}
	return true
}

// choose passes the decision through its stages and returns the index of the chosen
// candidate, or the reason of an Admitter. Filters leave the beginning of the candidates, so that an
// index among what is left is one among all.
func (p *pipeline) choose(d *decision) (chosen int, err error) {
	req, left := &d.req, slices.Clip(d.candidates) // what a stage appends goes elsewhere
	if p.Matcher != nil && !p.try(p.Matcher, func() { p.Matcher.Match(req, left) }) {
		for i := range left {
			left[i].PrefixTokens = 0
		}
	}
	if a := req.Adopted; a != nil && a.Mirrored {
		c := &left[d.adopted]
		c.PrefixTokens = min(max(a.ExpectedCached, 0), max(req.InputTokens-1, 0))
	}
	if p.Predictor != nil && !p.try(p.Predictor, func() { p.Predictor.Predict(req, left) }) {
		for i := range left {
			left[i].Prediction = Prediction{}
		}
	}
	if req.Adopted != nil {
		return d.adopted, nil
	}

	for i, a := range p.Admitters {
		p.try(a, func() { err = a.Admit(req, left) })
		if err != nil && notNil("", err) != nil {
			p.breach(a, "refused with a nil %T, which is no reason: return nil to admit", err)
			err = nil
		}
		if err != nil {
			p.withdraw(p.Admitters[:i], req)
			return -1, &RejectedError{Reason: err}
		}
	}

	left, err = p.filter(d, left)
	if err != nil {
		return -1, err
	}
	scores := d.scores[:len(left)]
	p.score(d, left, scores)
	if d.limited {
		weigh(left, scores)
	}

	ok := p.try(p.Picker, func() { chosen = p.Picker.Pick(req, left, scores) })
	if ok && (chosen < 0 || chosen >= len(left)) {
		p.breach(p.Picker, "picked index %d of %d candidates", chosen, len(left))
		ok = false
	}
	if !ok {
		chosen = MaxScore{}.Pick(req, left, scores)
	}
	return chosen, nil
}

// filter passes the candidates through the filters, and returns what these leave, or errBroken.
func (p *pipeline) filter(d *decision, left []Candidate) ([]Candidate, error) {
	req := &d.req
	d.cuts, d.undecided = d.cuts[:0], d.undecided[:0]
	all := uint64(0)
	if len(p.Filters) > 0 {
		all = sum(left)
	}
	for i, f := range p.Filters {
		var passed []Candidate
		spoke := !slices.Contains(d.broken, i) && p.try(f, func() { passed = f.Filter(req, left) })
		n := min(len(passed), len(left))
		stay := sum(left[:n])
		if lost := len(left) - n; stay+sum(left[n:]) != all {
			if n == 0 || n < len(passed) || &passed[0] != &left[0] || !ordered(passed) {
				p.breach(f, "repeated or cleared candidates, and returned them or none; use endpick.Keep")
				p.withdraw(p.Admitters, req)
				d.broken = append(d.broken, i)
				return nil, errBroken
			}
			p.breach(f, "lost candidates that it removes, as slices.DeleteFunc does, so that receipts lack them; use endpick.Keep")
			d.candidates = slices.Delete(d.candidates, n, len(left))
			for j := range d.cuts {
				d.cuts[j] -= lost
			}
		}
		switch {
		case !spoke: // it has panicked, or broken its contract in this decision
		case len(passed) == 0:
			p.undecided.Add(1)
			if req.Receipt != nil {
				d.undecided = append(d.undecided, p.filterNames[i])
			}
		case len(passed) > len(left) || &passed[0] != &left[0]:
			p.breach(f, "returned another slice than the beginning of the one it was given; use endpick.Keep")
		default:
			left, all = slices.Clip(passed), stay
		}
		d.cuts = append(d.cuts, len(left))
	}
	return left, nil
}

// withdraw tells admitters that a request they admitted is not routed after all, or not
// yet.
func (p *pipeline) withdraw(admitted []Admitter, req *Request) {
	for _, a := range admitted {
		if w, ok := a.(interface{ Withdrawn(*Request) }); ok {
			p.try(a, func() { w.Withdrawn(req) })
		}
	}
}

// score writes the combined score of each candidate: the score of a single
// scorer as it is, or the weighted mean of several, each clamped to [0, 1].
func (p *pipeline) score(d *decision, left []Candidate, scores []float64) {
	clear(scores)
	d.each = d.each[:0]
	one, least, most, why := scores, -math.MaxFloat64, math.MaxFloat64, ""
	if len(p.Scorers) > 1 {
		one, least, most, why = d.one[:len(left)], -rounding, 1+rounding, ", beyond [0, 1] beside other scorers"
	}
	for i, w := range p.Scorers {
		clear(one)
		if !p.try(w.Scorer, func() { w.Scorer.Score(&d.req, left, one) }) {
			clear(one)
		}
		if at := slices.IndexFunc(one, func(v float64) bool { return !(least <= v && v <= most) }); at >= 0 {
			p.breach(w.Scorer, "gave endpoint %q the score %v%s", left[at].Endpoint.ID, one[at], why)
			repair(one)
		}
		if d.req.Receipt != nil {
			d.each = append(d.each, one...)
		}
		if len(p.Scorers) == 1 {
			return
		}
		for j, v := range one {
			scores[j] = min(scores[j]+p.weights[i]*min(max(v, 0), 1), 1)
		}
	}
}

// rounding is by how much a score may leave [0, 1] without being reported.
const rounding = 1e-9

// repair gives a score that is not finite the lowest of the finite ones, so
// that a scorer which fails for one endpoint never prefers it.
func repair(scores []float64) {
	finite := func(v float64) bool { return v-v == 0 }
	lowest := math.Inf(1)
	for _, v := range scores {
		if finite(v) {
			lowest = min(lowest, v)
		}
	}
	if math.IsInf(lowest, 1) {
		lowest = 0
	}
	for i, v := range scores {
		if !finite(v) {
			scores[i] = lowest
		}
	}
}
