package predict

import (
	"math"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict/internal/learn"
	"github.com/endpick/endpick/predict/pace"
)

// An openRequest is what was known when a request was routed.
type openRequest struct {
	ref       endpick.EndpointRef
	model     string
	variant   string
	stream    bool
	answered  bool // its first token has arrived
	labelled  bool // its TTFT has been learned
	features  learn.Features
	predicted [targets]float64 // by the models, in milliseconds; 0: none
	upper     [targets]float64
	pace      float64 // the endpoint's factor in these
}

// An endpointState is what is known of one endpoint. Times are in nanoseconds since the epoch.
type endpointState struct {
	pace    pace.Pace // relative to the models
	waiting int       // requests without a first token
	since   int64     // when one of these last got it, or when the first of them came
}

// asked is when the wait for an answer began, or now. The pace does not fade while waiting.
func (s *endpointState) asked(now int64) int64 {
	if s.waiting > 0 {
		return min(s.since, now)
	}
	return now
}

// factor is how much longer the endpoint takes than the models say.
func (s *endpointState) factor(now int64) float64 { return s.pace.Factor(s.asked(now)) }

// wait records a request that waits for its first token.
func (s *endpointState) wait(now int64) {
	if s.waiting == 0 {
		s.since = now
	}
	s.waiting++
}

// leave records that a request got its first token, or ended without.
func (s *endpointState) leave(now int64, answered bool) {
	s.waiting--
	if answered {
		s.since = now
	}
}

// paces appends the factors of the endpoints of the candidates with these indices.
func (l *predictor) paces(dst []float64, indices []int, candidates []endpick.Candidate, now int64) []float64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, i := range indices {
		factor := 1.0
		if s := l.states.Find(candidates[i].Ref); s != nil {
			factor = s.factor(now)
		}
		dst = append(dst, factor)
	}
	return dst
}

// Routed records what was known when the request was routed, if its length is known.
func (l *predictor) Routed(e *endpick.Event) {
	model, variant := modelName(e.Request), e.Candidate.Endpoint.Variant
	if e.Request.InputTokens <= 0 || len(model) > maxName || len(variant) > maxName {
		return
	}
	now := nanoseconds(e.RoutedAt)
	l.mu.Lock()
	defer l.mu.Unlock()
	o, s := l.open.At(e.Lease), l.states.At(e.Candidate.Ref)
	if o == nil {
		return
	}
	if s == nil {
		s = &endpointState{} // the endpoint has just been removed, while the request continues
	}
	*o = openRequest{
		ref: e.Candidate.Ref, model: model, variant: variant, stream: e.Request.Stream,
		features: features(e.Request, e.Candidate), pace: s.factor(now),
	}
	s.wait(now)
	p := &e.Candidate.Prediction
	o.predicted = [targets]float64{inMilliseconds(p.TTFT), inMilliseconds(p.TPOT), inMilliseconds(p.E2E)}
	o.upper = [targets]float64{inMilliseconds(p.TTFTUpper), inMilliseconds(p.TPOTUpper), inMilliseconds(p.E2EUpper)}
	for i, set := range targetSets {
		if p.Has&set == 0 {
			o.predicted[i] = 0
		}
	}
}

// leave takes a request from those that wait on its endpoint, if it is one; l.mu is held.
func (l *predictor) leave(o *openRequest, now time.Time, answered bool) {
	if s := l.states.Find(o.ref); s != nil && !o.answered {
		s.leave(nanoseconds(now), answered)
	}
	o.answered = true
}

func inMilliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

// FirstToken labels the time to first token.
func (l *predictor) FirstToken(e *endpick.Event) {
	l.mu.Lock()
	found := l.open.Find(e.Lease)
	if found == nil {
		l.mu.Unlock()
		return
	}
	l.leave(found, e.Now, true)
	m := (*l.models.Load())[found.model]
	v := findVariant(*l.variants.Load(), found.variant)
	found.labelled = m != nil && v != nil
	o := *found
	l.mu.Unlock()
	// The names of a first request are admitted in Done, if it completes.
	if latency, ok := e.TTFT(); ok && o.labelled {
		l.label(m, ttft, v, &o, latency, e.Now)
	}
}

// Done labels the time per output token, or that of the whole request if it did not stream.
// Nothing is learned from a request that failed, and only the rate of tokens from one that
// was canceled.
func (l *predictor) Done(e *endpick.Event, outcome *endpick.Outcome) {
	l.mu.Lock()
	found := l.open.Find(e.Lease)
	if found == nil {
		l.mu.Unlock()
		return
	}
	completed := outcome.Status == endpick.Completed
	l.leave(found, e.Now, completed)
	o := *found
	l.open.Drop(e.Lease)
	l.mu.Unlock()
	var m *servedModel
	var v *variant
	switch {
	case completed:
		m, v = l.admitModel(o.model), l.admitVariant(o.variant)
		l.use(m, v)
	case outcome.Status == endpick.Canceled:
		m, v = (*l.models.Load())[o.model], findVariant(*l.variants.Load(), o.variant)
	}
	if m == nil || v == nil {
		return
	}
	if latency, ok := e.TTFT(); ok && !o.labelled {
		l.label(m, ttft, v, &o, latency, e.Now)
	}
	switch latency, ok := e.TPOT(); {
	case o.stream && ok:
		l.label(m, tpot, v, &o, latency, e.Now)
	case !o.stream && completed:
		if latency, ok := e.E2E(); ok {
			l.label(m, e2e, v, &o, latency, e.Now)
		}
	}
}

// label learns a measured latency, without the part due to the endpoint's pace. Models would
// otherwise look for other features of this endpoint to explain it, and be wrong about all endpoints, and
// this one once its pace has changed.
func (l *predictor) label(m *servedModel, target learn.Target, v *variant, o *openRequest, latency time.Duration, at time.Time) {
	if latency > maxLatency {
		return // the clock was set
	}
	if latency > 0 {
		m.count(target, v)
	}
	ms, predicted, upper := inMilliseconds(latency), o.predicted[target], o.upper[target]
	part := l.paceOf(&m.seen[target][v.place].off, m.learners[target].Refits(), o, ms, predicted, upper, nanoseconds(at))
	var row [learn.FeatureCount]float64
	o.row(v, &row)
	m.learners[target].Label(row[:], ms/part, predicted/part, upper/part, at)
}

// paceOf learns an endpoint's pace from a measured latency, and returns the factor that is due to
// it. The model's error for all endpoints of the kind is not part of it: the next refit corrects
// that.
func (l *predictor) paceOf(all *offset, refits uint64, o *openRequest, ms, predicted, upper float64, now int64) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.states.Find(o.ref)
	if s == nil {
		return 1
	}
	if all.refits != refits {
		*all = offset{refits: refits}
	}
	if predicted > 0 {
		ratio, deviation := ms*o.pace/predicted, math.Log(max(upper/predicted, 1))/deviations
		if off, ok := all.Mean(); ok {
			s.pace.Add(now, ratio/off, deviation)
		}
		all.Add(now, ratio, deviation)
	}
	return s.pace.Factor(now)
}

// An offset is a model's mean error for a kind of endpoint since the last fit.
type offset struct {
	refits uint64
	pace.Pace
}

// deviations is how many standard deviations above the mean cover nine in ten values of a
// normal distribution.
const deviations = 1.28

// row writes the features of the request on an endpoint of that variant.
func (o *openRequest) row(v *variant, row *[learn.FeatureCount]float64) {
	f := o.features
	f.Variant = float64(v.place)
	f.Row(row[:])
}

// EndpointRemoved forgets the endpoint.
func (l *predictor) EndpointRemoved(ref endpick.EndpointRef) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.states.Drop(ref)
}
