package endpick

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
)

// pipeline is a validated Policy: weights normalised, names and observers
// collected. It is immutable.
type pipeline struct {
	Policy
	stages            []any // each once, if comparable
	weights           []float64
	filterNames       []string
	scorerNames       []string
	routed            []RoutedObserver
	firstToken        []FirstTokenObserver
	done              []DoneObserver
	endpointObservers []EndpointObserver
}

func newPipeline(p Policy) (*pipeline, error) {
	p.Admitters = slices.Clone(p.Admitters)
	p.Filters = slices.Clone(p.Filters)
	p.Scorers = slices.Clone(p.Scorers)
	if p.Picker == nil {
		p.Picker = MaxScore{}
	}
	c := &pipeline{Policy: p}
	stages := []any{p.Matcher, p.Predictor, p.Picker}
	for i, s := range stages {
		if s == nil {
			continue
		}
		if err := notNil([]string{"Policy.Matcher", "Policy.Predictor", "Policy.Picker"}[i], s); err != nil {
			return nil, err
		}
	}
	stages = stages[:2] // the picker comes last
	for i, a := range p.Admitters {
		if err := notNil(fmt.Sprintf("Policy.Admitters[%d]", i), a); err != nil {
			return nil, err
		}
		stages = append(stages, a)
	}
	for i, f := range p.Filters {
		if err := notNil(fmt.Sprintf("Policy.Filters[%d]", i), f); err != nil {
			return nil, err
		}
		stages = append(stages, f)
		c.filterNames = append(c.filterNames, stageName(f))
	}
	var largest, sum float64
	for i, w := range p.Scorers {
		if err := notNil(fmt.Sprintf("Policy.Scorers[%d].Scorer", i), w.Scorer); err != nil {
			return nil, err
		}
		if !(w.Weight > 0) || math.IsInf(w.Weight, 1) {
			return nil, &ConfigError{
				Field:  fmt.Sprintf("Policy.Scorers[%d].Weight", i),
				Reason: fmt.Sprintf("is %v; leave a scorer out to switch it off", w.Weight),
			}
		}
		stages = append(stages, w.Scorer)
		largest = max(largest, w.Weight)
		c.scorerNames = append(c.scorerNames, stageName(w.Scorer))
	}
	for _, w := range p.Scorers {
		c.weights = append(c.weights, w.Weight/largest) // dividing first keeps the sum from overflowing
		sum += w.Weight / largest
	}
	for i := range c.weights {
		c.weights[i] /= sum
	}
	stages = append(stages, p.Picker)
	c.observe(stages)
	for _, s := range c.stages {
		if v, ok := s.(interface{ Validate() error }); ok {
			if err := v.Validate(); err != nil {
				return nil, newStageError(s, err)
			}
		}
	}
	return c, nil
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

// observe collects the observers among the stages and those that stages return from
// Observer, each once, however often the policy lists it.
func (p *pipeline) observe(stages []any) {
	var seen []any
	for own := len(stages); len(stages) > 0; own-- {
		s := stages[0]
		stages = stages[1:]
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
		if shares, ok := s.(interface{ Observer() any }); ok && (own > 0 || comparable) {
			stages = append(stages, shares.Observer())
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

// stageName is the stage's name in receipts: that of its Name method, or its type.
func stageName(stage any) string {
	if n, ok := stage.(interface{ Name() string }); ok {
		return n.Name()
	}
	return fmt.Sprintf("%T", stage)
}

// decision is the working memory of one Route. Its slices are reused, and so are the
// contents of its rows.
type decision struct {
	req        Request
	pool       []member // ordered by slot
	rows       rows
	candidates []Candidate // some or all of the rows
	excluded   int         // members of the pool excluded by the request
	avoided    int         // members of the pool avoided by the request
	scores     []float64   // of the remaining candidates
	one        []float64   // of a single scorer
	cuts       []int       // how many candidates each filter left
	each       []float64   // scores by scorer, then candidate; for a receipt only
}

// grow makes room for n candidates.
func (d *decision) grow(n int) {
	if d.rows.grow(n) {
		d.scores = make([]float64, len(d.rows.all))
		d.one = make([]float64, len(d.rows.all))
	}
}

// forget drops what the caller owns, and receipt data of this request.
func (d *decision) forget() {
	d.req = Request{}
	d.pool = nil
	d.excluded, d.avoided = 0, 0
}

func (d *decision) memberOf(chosen int) member {
	slot := d.candidates[chosen].Ref.Slot
	i, _ := slices.BinarySearchFunc(d.pool, slot, func(m member, slot uint32) int {
		return cmp.Compare(m.state.ref.Slot, slot)
	})
	return d.pool[i]
}

// run passes the decision through its stages and returns the index of the
// chosen candidate, or the reason of an Admitter.
func (r *Router) run(p *pipeline, d *decision) (int, error) {
	if p.Matcher != nil {
		r.match(p.Matcher, d)
	}
	d.cuts = d.cuts[:0]
	left := d.candidates
	d.rows.predicted = len(left)
	if p.Predictor != nil {
		r.predict(p.Predictor, d, left)
	}
	if !d.req.UnderWay {
		for i, a := range p.Admitters {
			if err := r.admit(a, d, left); err != nil {
				r.withdraw(p.Admitters[:i], d)
				return -1, &RejectedError{Reason: err}
			}
		}
	}
	left = r.narrow(p.Filters, d, left)
	scores := d.scores[:len(left)]
	r.combine(p, d, left, scores)
	chosen, ok := r.pick(p.Picker, d, left, scores)
	if ok && (chosen < 0 || chosen >= len(left)) {
		r.broke(p.Picker, "picked index %d of %d candidates", chosen, len(left))
		ok = false
	}
	if !ok {
		chosen = MaxScore{}.Pick(&d.req, left, scores)
	}
	return chosen, nil
}

// narrow returns the candidates that pass the filters.
func (r *Router) narrow(filters []Filter, d *decision, left []Candidate) []Candidate {
	for _, f := range filters {
		kept := r.filter(f, d, left)
		switch {
		case len(kept) == 0: // no opinion
		case len(kept) > len(left) || &kept[0] != &left[0]:
			r.broke(f, "returned another slice than the beginning of the one it was given; use endpick.Keep")
		default:
			left = kept
		}
		d.cuts = append(d.cuts, len(left))
	}
	return left
}

// combine writes the combined score of each candidate: the score of a single
// scorer as it is, or the weighted mean of several, each clamped to [0, 1].
func (r *Router) combine(p *pipeline, d *decision, left []Candidate, scores []float64) {
	clear(scores)
	d.each = d.each[:0]
	one := scores
	if len(p.Scorers) > 1 {
		one = d.one[:len(left)]
	}
	for i, w := range p.Scorers {
		clear(one)
		if !r.score(w.Scorer, d, left, one) {
			clear(one)
		}
		if at, score := repair(one); at >= 0 {
			r.broke(w.Scorer, "gave endpoint %q the score %v", left[at].Endpoint.ID, score)
		}
		if d.req.Receipt != nil {
			d.each = append(d.each, one...)
		}
		if len(p.Scorers) == 1 {
			return
		}
		weight := p.weights[i]
		for j, v := range one {
			// The conversion prevents a fused multiply-add, which would make results differ between
			// machines.
			scores[j] = min(scores[j]+float64(weight*min(max(v, 0), 1)), 1)
		}
	}
}

// repair gives a score that is not finite the lowest of the finite ones, so
// that a scorer which fails for one endpoint never prefers it. It returns the
// first such score, and where it was; −1: nowhere.
func repair(scores []float64) (at int, score float64) {
	at = -1
	for i, v := range scores {
		if v-v != 0 { // NaN or infinite
			at = i
			break
		}
	}
	if at < 0 {
		return at, 0
	}
	score = scores[at]
	lowest := math.Inf(1)
	for _, v := range scores {
		if v-v == 0 {
			lowest = min(lowest, v)
		}
	}
	if math.IsInf(lowest, 1) {
		lowest = 0
	}
	for i, v := range scores {
		if v-v != 0 {
			scores[i] = lowest
		}
	}
	return at, score
}
