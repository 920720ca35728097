package main

import (
	"math"

	"github.com/endpick/endpick"
)

// predictions compares a policy's predictions for the chosen endpoints with the
// actual latencies.
type predictions struct {
	Requests int         `json:"requests"` // predicted and completed
	TTFT     *prediction `json:"ttft"`     // nil: never predicted
	TPOT     *prediction `json:"tpot"`
}

// prediction is the error of one latency.
type prediction struct {
	MAPE float64 `json:"mape"` // mean over requests of |predicted − actual|/actual
	// Aggregate is |mean predicted − mean actual|/mean actual over the run.
	Aggregate float64 `json:"aggregate_error"`
	// Covered is the share of requests within the upper bound, which should hold for
	// nine in ten.
	Covered float64 `json:"within_upper"`
}

// predictionMeter is a filter that keeps all candidates, and compares. A run is
// a single goroutine.
type predictionMeter struct {
	requests   int
	ttft, tpot errorSums
}

type errorSums struct{ n, covered, relative, predicted, actual float64 }

// Filter implements [endpick.Filter].
func (m *predictionMeter) Filter(_ *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	return candidates
}

// Done implements [endpick.DoneObserver].
func (m *predictionMeter) Done(e *endpick.Event, o *endpick.Outcome) {
	p := &e.Candidate.Prediction
	if o.Status != endpick.Completed || p.Has == 0 {
		return
	}
	m.requests++
	if actual, ok := e.TTFT(); ok && p.Has&endpick.TTFT != 0 {
		m.ttft.add(p.TTFT.Seconds(), p.TTFTUpper.Seconds(), actual.Seconds())
	}
	if actual, ok := e.TPOT(); ok && p.Has&endpick.TPOT != 0 {
		m.tpot.add(p.TPOT.Seconds(), p.TPOTUpper.Seconds(), actual.Seconds())
	}
}

func (s *errorSums) add(predicted, upper, actual float64) {
	if actual <= 0 {
		return
	}
	s.n++
	s.relative += math.Abs(predicted-actual) / actual
	s.predicted += predicted
	s.actual += actual
	if actual <= upper {
		s.covered++
	}
}

func (s *errorSums) report() *prediction {
	if s.n == 0 {
		return nil
	}
	return &prediction{MAPE: s.relative / s.n, Aggregate: math.Abs(s.predicted-s.actual) / s.actual, Covered: s.covered / s.n}
}

func (m *predictionMeter) report() *predictions {
	if m == nil {
		return nil
	}
	return &predictions{Requests: m.requests, TTFT: m.ttft.report(), TPOT: m.tpot.report()}
}

// watch adds a meter to a policy that predicts; others get none.
func watch(config *endpick.Config) (m *predictionMeter) {
	if config.Policy.Predictor != nil {
		m = &predictionMeter{}
		config.Policy.Filters = append(config.Policy.Filters[:len(config.Policy.Filters):len(config.Policy.Filters)], m)
	}
	return m
}
