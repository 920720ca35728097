package endpick

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"
)

// The stages of a decision, in the order in which the router calls them. Every
// stage is called concurrently and must not keep the request, the candidates or
// a slice it was given.

// Matcher finds how much of the prompt each endpoint already holds. It sets
// PrefixTokens of every candidate that holds a head.
type Matcher interface {
	Match(req *Request, candidates []Candidate)
}

// Predictor expects latencies. It sets the Prediction of each candidate on its
// own: one that it can't predict keeps an empty one.
type Predictor interface {
	Predict(req *Request, candidates []Candidate)
}

// Admitter lets the request in by returning nil, or says why not. The router
// wraps the reason in a [RejectedError].
type Admitter interface {
	Admit(req *Request, candidates []Candidate) error
}

// Filter narrows the choice. It moves the candidates to keep to the front, in
// place and in their order, and returns that part; [Keep] does the moving (not
// slices.DeleteFunc, which clears what it removes). An empty result means that
// the filter has no opinion: all stay.
type Filter interface {
	Filter(req *Request, candidates []Candidate) []Candidate
}

// Scorer grades candidates: higher is better. It writes every slot of dst,
// which is as long as candidates. Scores are finite; a scorer that is combined
// with others keeps them within [0, 1].
type Scorer interface {
	Score(req *Request, candidates []Candidate, dst []float64)
}

// Picker chooses an index into candidates, which are never empty. What it
// leaves to chance it draws from [Request.ChanceOf].
type Picker interface {
	Pick(req *Request, candidates []Candidate, scores []float64) int
}

// A stage that wants to hear how requests went also implements one or more of
// the observers. For one lease the calls come one after another, Routed first
// and Done last, each at most once; for different leases they come
// concurrently. An observer must not call the router or methods of the lease.

// RoutedObserver hears of each lease before Route returns it.
type RoutedObserver interface {
	Routed(e *Event)
}

// FirstTokenObserver hears of the first token of each response that has one.
type FirstTokenObserver interface {
	FirstToken(e *Event)
}

// DoneObserver hears how each request ended.
type DoneObserver interface {
	Done(e *Event, o *Outcome)
}

// EndpointObserver is what a stage also implements if it keeps state for each
// endpoint. EndpointRemoved is called once when an endpoint goes; a request
// that was being routed there may still open a lease on it, and leases on it
// end later: their Ref has the removed generation. It must not call the router.
type EndpointObserver interface {
	EndpointRemoved(ref Ref)
}

// Event tells an observer about one lease. It is valid during the call.
type Event struct {
	// Lease is the dense handle of the lease: slots are used again, with
	// another generation, after Done has returned.
	Lease LeaseRef
	// Request is the routed request; its Blocks are there in Routed only.
	Request *Request
	// Candidate is the chosen candidate as it was when it was chosen.
	Candidate *Candidate
	// Candidates are all that the request could have gone to, the chosen one
	// and those that filters removed among them, in no particular order. In
	// Routed only.
	Candidates []Candidate
	// Now is the moment of the call.
	Now time.Time
	// RoutedAt is when Route was called.
	RoutedAt time.Time
	// FirstTokenAt is zero before the first token, and for a response that
	// does not stream unless Lease.FirstToken was called.
	FirstTokenAt time.Time
	// LastTokenAt is the moment of the newest call of Tokens or FirstToken.
	LastTokenAt time.Time
	// OutputTokens are those counted so far; in Done the engine's own figure
	// where it gave one.
	OutputTokens int
}

// TTFT is the measured time to first token; false if there was none, or if the
// clock has been set back since.
func (e *Event) TTFT() (time.Duration, bool) {
	if e.FirstTokenAt.IsZero() {
		return 0, false
	}
	ttft := e.FirstTokenAt.Sub(e.RoutedAt)
	return ttft, ttft >= 0
}

// TPOT is the measured mean time per output token after the first; false if
// there were fewer than two tokens, no first one to measure from, or if the
// clock has been set back since.
func (e *Event) TPOT() (time.Duration, bool) {
	if e.FirstTokenAt.IsZero() || e.OutputTokens < 2 {
		return 0, false
	}
	tpot := e.LastTokenAt.Sub(e.FirstTokenAt) / time.Duration(e.OutputTokens-1)
	return tpot, tpot >= 0
}

// LeaseRef is the dense handle of a lease, as Ref is that of an endpoint.
type LeaseRef struct {
	Slot       uint32
	Generation uint32
}

// Outcome is how a request ended. The zero value is a success of which the
// engine said nothing.
type Outcome struct {
	Status Status
	// InputTokens and OutputTokens are the engine's usage figures. Zero: not
	// given; what the lease counted stands.
	InputTokens  int
	OutputTokens int
	// CachedTokens is usage.prompt_tokens_details.cached_tokens. It is read
	// only if HasCachedTokens: null is absent, not zero.
	CachedTokens    int
	HasCachedTokens bool
}

// Status says how a request ended.
type Status uint8

// How requests end.
const (
	Completed Status = iota // the whole response was passed on
	Failed                  // the endpoint did not answer, or broke off
	Canceled                // the client went away
	Lost                    // nobody said: the lease was reaped
)

// String returns the status in lower case.
func (s Status) String() string {
	switch s {
	case Completed:
		return "completed"
	case Failed:
		return "failed"
	case Canceled:
		return "canceled"
	case Lost:
		return "lost"
	}
	return "unknown"
}

// Policy is how a router decides. Every field may be left out: the zero policy
// picks at random among the endpoints that serve the model.
type Policy struct {
	// Name is shown in receipts.
	Name      string
	Matcher   Matcher
	Predictor Predictor
	Admitters []Admitter
	Filters   []Filter
	Scorers   []Weighted
	// Picker is MaxScore if nil.
	Picker Picker
}

// Weighted is a scorer and its share in the combined score. Weights are
// divided by their sum, so that only their ratio counts.
type Weighted struct {
	Scorer Scorer
	// Weight is above zero and finite. Zero is an error, not a way to switch
	// a scorer off.
	Weight float64
}

// Keep is the stable partition that filters are made of: it moves the
// candidates for which keep returns true to the front, in their order, and
// returns them. The others stay behind the cut. It allocates nothing.
func Keep(candidates []Candidate, keep func(*Candidate) bool) []Candidate {
	n := 0
	for i := range candidates {
		if !keep(&candidates[i]) {
			continue
		}
		if i != n {
			candidates[i], candidates[n] = candidates[n], candidates[i]
		}
		n++
	}
	return candidates[:n]
}

// pipeline is a Policy made ready: checked, weights normalised, names and
// observers collected. It never changes.
type pipeline struct {
	Policy
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
	stages := []any{p.Matcher, p.Predictor}
	for i, a := range p.Admitters {
		if a == nil {
			return nil, &ConfigError{Field: fmt.Sprintf("Policy.Admitters[%d]", i), Reason: "is nil"}
		}
		stages = append(stages, a)
	}
	for i, f := range p.Filters {
		if f == nil {
			return nil, &ConfigError{Field: fmt.Sprintf("Policy.Filters[%d]", i), Reason: "is nil"}
		}
		stages = append(stages, f)
		c.filterNames = append(c.filterNames, stageName(f))
	}
	var largest, sum float64
	for i, w := range p.Scorers {
		if w.Scorer == nil {
			return nil, &ConfigError{Field: fmt.Sprintf("Policy.Scorers[%d].Scorer", i), Reason: "is nil"}
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
		c.weights = append(c.weights, w.Weight/largest) // a sum of weights may overflow
		sum += w.Weight / largest
	}
	for i := range c.weights {
		c.weights[i] /= sum
	}
	stages = append(stages, p.Picker)
	c.observe(stages)
	return c, nil
}

// observe collects the stages that listen, each once however many places of
// the policy it fills.
func (p *pipeline) observe(stages []any) {
	var seen []any
	for _, s := range stages {
		if s == nil {
			continue
		}
		if reflect.ValueOf(s).Comparable() {
			if slices.Contains(seen, s) {
				continue
			}
			seen = append(seen, s)
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

// stageName is what receipts call a stage: its Name method, or its type.
func stageName(stage any) string {
	if n, ok := stage.(interface{ Name() string }); ok {
		return n.Name()
	}
	return fmt.Sprintf("%T", stage)
}

// decision is the working memory of one Route. Its slices are used again.
type decision struct {
	req        Request
	pool       []member // ordered by slot
	candidates []Candidate
	scores     []float64 // of the candidates that are left
	one        []float64 // of one scorer
	cuts       []int     // how many candidates each filter left
	each       []float64 // scores by scorer, then candidate; for a receipt only
}

// forget drops what the caller owns.
func (d *decision) forget() {
	d.req = Request{}
	d.pool = nil
}

func (d *decision) memberOf(chosen int) member {
	slot := d.candidates[chosen].Ref.Slot
	i, _ := slices.BinarySearchFunc(d.pool, slot, func(m member, slot uint32) int {
		return cmp.Compare(m.state.ref.Slot, slot)
	})
	return d.pool[i]
}

// run takes the decision through its stages and returns the index of the
// chosen candidate, or the reason of an Admitter.
func (p *pipeline) run(d *decision, counts *counters) (int, error) {
	req, all := &d.req, d.candidates
	if p.Matcher != nil {
		p.Matcher.Match(req, all)
	}
	if p.Predictor != nil {
		p.Predictor.Predict(req, all)
	}
	for _, a := range p.Admitters {
		if err := a.Admit(req, all); err != nil {
			return -1, &RejectedError{Reason: err}
		}
	}
	left := all
	d.cuts = d.cuts[:0]
	for _, f := range p.Filters {
		kept := f.Filter(req, left)
		switch {
		case len(kept) == 0: // no opinion
		case len(kept) > len(left) || &kept[0] != &left[0]:
			counts.badStage.Add(1)
		default:
			left = kept
		}
		d.cuts = append(d.cuts, len(left))
	}
	scores := d.scores[:len(left)]
	p.score(d, left, scores, counts)
	chosen := p.Picker.Pick(req, left, scores)
	if chosen < 0 || chosen >= len(left) {
		counts.badStage.Add(1)
		chosen = MaxScore{}.Pick(req, left, scores)
	}
	return chosen, nil
}

// score writes the combined score of each candidate: that of the only scorer
// as it is, or the weighted mean of several, each held within [0, 1].
func (p *pipeline) score(d *decision, left []Candidate, scores []float64, counts *counters) {
	clear(scores)
	d.each = d.each[:0]
	one := scores
	if len(p.Scorers) > 1 {
		one = d.one[:len(left)]
	}
	for i, w := range p.Scorers {
		clear(one)
		w.Scorer.Score(&d.req, left, one)
		repair(one, counts)
		if d.req.Receipt != nil {
			d.each = append(d.each, one...)
		}
		if len(p.Scorers) == 1 {
			return
		}
		weight := p.weights[i]
		for j, v := range one {
			// The conversion forbids a fused operation, which not all machines have.
			scores[j] = min(scores[j]+float64(weight*min(max(v, 0), 1)), 1)
		}
	}
}

// repair gives a score that is not finite the lowest of the finite ones, so
// that a scorer which fails for one endpoint never prefers it.
func repair(scores []float64, counts *counters) {
	var broken bool
	for _, v := range scores {
		if v-v != 0 { // NaN or infinite
			broken = true
			break
		}
	}
	if !broken {
		return
	}
	counts.badStage.Add(1)
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
}
