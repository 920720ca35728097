package main

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/recording"
)

// keptRequests is how many requests the debug page shows.
const keptRequests = 20

// watch keeps what came of requests and of predictions. It is safe for concurrent
// use.
type watch struct {
	metrics *metrics

	mu       sync.Mutex
	ended    []measured // the newest last
	attained attainment
}

// measured is a request that has ended, as its endpoint served it: the times
// count from its routing, as predictions do.
type measured struct {
	At                        time.Time
	Model, Endpoint, Status   string
	InputTokens, OutputTokens int
	TTFT, TPOT, E2E           latency
}

// latency is what was predicted and what came. Zero: nothing was.
type latency struct{ Predicted, Actual time.Duration }

// Error is predicted less actual, as a share of the latter; NaN if either is
// not known.
func (l latency) Error() float64 {
	if l.Predicted == 0 || l.Actual == 0 {
		return math.NaN()
	}
	return float64(l.Predicted-l.Actual) / float64(l.Actual)
}

// Latencies are TTFT, TPOT and E2E.
func (m measured) Latencies() []latency { return []latency{m.TTFT, m.TPOT, m.E2E} }

// attainment counts how latency targets were kept, from the arrival of the
// requests on: waiting in the gateway queue is part of it. A request that asks
// for a target and fails or is rejected misses it; one whose client leaves says
// nothing.
type attainment struct{ TTFT, TPOT kept }

type kept struct{ Asked, Met int }

// Share is met of asked; NaN if none was asked for.
func (k kept) Share() float64 { return float64(k.Met) / float64(k.Asked) }

// around returns what stands where the predictor of a policy would, passes all on to
// it, and tells the watch. Nil: the policy has none.
func (w *watch) around(predictor endpick.Predictor) *watched { return &watched{w, predictor} }

type watched struct {
	*watch
	predictor endpick.Predictor
}

func (w *watched) Predict(req *endpick.Request, candidates []endpick.Candidate) {
	if w.predictor == nil {
		return
	}
	began := time.Now()
	w.predictor.Predict(req, candidates)
	w.metrics.predicted(req.Model, time.Since(began))
}

func (w *watched) Routed(e *endpick.Event) {
	if o, ok := w.predictor.(endpick.RoutedObserver); ok {
		o.Routed(e)
	}
}

func (w *watched) FirstToken(e *endpick.Event) {
	if o, ok := w.predictor.(endpick.FirstTokenObserver); ok {
		o.FirstToken(e)
	}
}

func (w *watched) EndpointRemoved(ref endpick.Ref) {
	if o, ok := w.predictor.(endpick.EndpointObserver); ok {
		o.EndpointRemoved(ref)
	}
}

func (w *watched) Done(e *endpick.Event, outcome *endpick.Outcome) {
	if o, ok := w.predictor.(endpick.DoneObserver); ok {
		o.Done(e, outcome)
	}
	w.ends(e, outcome)
}

// ends takes in how a request has ended.
func (w *watch) ends(e *endpick.Event, outcome *endpick.Outcome) {
	p := &e.Candidate.Prediction
	m := measured{
		At: e.Now, Model: e.Request.Model, Endpoint: e.Candidate.Endpoint.ID, Status: outcome.Status.String(),
		InputTokens: e.Request.InputTokens, OutputTokens: e.OutputTokens,
	}
	if e.Request.Stream { // of another response neither can be seen
		m.TTFT.Predicted = expected(p, endpick.TTFT, p.TTFT)
		m.TPOT.Predicted = expected(p, endpick.TPOT, p.TPOT)
	}
	m.E2E.Predicted = expected(p, endpick.E2E, p.E2E)
	if ttft, ok := e.TTFT(); ok {
		m.TTFT.Actual = max(ttft, 1)
	}
	if tpot, ok := e.TPOT(); ok {
		m.TPOT.Actual = max(tpot, 1)
	}
	if outcome.Status == endpick.Completed {
		m.E2E.Actual = max(e.Now.Sub(e.RoutedAt), 1)
		w.metrics.succeeded(e.Request.Model)
	}
	w.metrics.measured(e.Request.Model, &m)

	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.ended) == keptRequests {
		w.ended = slices.Delete(w.ended, 0, 1)
	}
	w.ended = append(w.ended, m)
}

// expected is a predicted latency; zero: it was not predicted.
func expected(p *endpick.Prediction, t endpick.Latencies, d time.Duration) time.Duration {
	if p.Has&t == 0 {
		return 0
	}
	return max(d, 1)
}

// record counts a request, with all of its attempts, for attainment.
func (w *watch) record(r recording.Request) {
	if r.Status == endpick.Canceled.String() {
		return
	}
	served := r.Status == endpick.Completed.String() && r.HTTP < 400
	// A response that does not stream shows no first token: as in package slo,
	// the whole latency is held against the target.
	ttft, tpot := r.E2EMillis, math.NaN()
	if r.Stream {
		ttft = math.NaN()
		if r.TTFTMillis != nil {
			ttft = *r.TTFTMillis
			if r.OutputTokens > 1 {
				tpot = (r.E2EMillis - ttft) / float64(r.OutputTokens-1)
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.SLOTTFTMillis > 0 {
		w.count(&w.attained.TTFT, w.metrics.ttft, r.Model, served && ttft <= r.SLOTTFTMillis)
	}
	// A response of one token has no time per token.
	if r.SLOTPOTMillis > 0 && r.Stream && !(served && math.IsNaN(tpot)) {
		w.count(&w.attained.TPOT, w.metrics.tpot, r.Model, served && tpot <= r.SLOTPOTMillis)
	}
}

func (w *watch) count(k *kept, t *target, model string, met bool) {
	k.Asked++
	if met {
		k.Met++
	}
	w.metrics.held(t, model, met)
}

// newest returns the requests that ended last, the newest first.
func (w *watch) newest() ([]measured, attainment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.Clone(w.ended)
	slices.Reverse(all)
	return all, w.attained
}
