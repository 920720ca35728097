package predict

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict/boost"
	"github.com/endpick/endpick/predict/internal/learn"
)

// A Sample is a recorded request of one served model: what was known when it was routed, and how
// long it took.
type Sample struct {
	At        time.Time
	Request   endpick.Request
	Candidate endpick.Candidate
	// PrefillRate is how many new tokens per second the endpoint has recently prefilled; NaN if
	// that is not known. A [Latency] does without it.
	PrefillRate float64
	// TTFT and TPOT in milliseconds; NaN if there is none.
	TTFT, TPOT float64
}

// evaluateEvery is how many samples lie between two fits.
const evaluateEvery = 1000

// Evaluate says how well latencies of recorded requests could have been predicted. It goes through
// the samples in the order of their arrival, fits models after every thousand, and predicts each
// sample from what had been learned by then. Labels are known at once, or, with delay, at the
// first token and at the end of the response.
func Evaluate(samples []Sample, delay bool) ([]endpick.Prediction, error) {
	predictions := make([]endpick.Prediction, len(samples))
	rows := make([][learn.FeatureCount]float64, len(samples))
	for i := range samples {
		s := &samples[i]
		f := features(&s.Request, &s.Candidate)
		f.PrefillRate, f.Variant = s.PrefillRate, math.NaN()
		f.Row(rows[i][:])
	}
	for _, target := range []learn.Target{ttft, tpot} {
		l := learn.New(&learn.Trainer{Synchronous: true, Manual: true}, learn.Latency(target))
		order := make([]int, len(samples)) // in which labels become known
		for i := range order {
			order[i] = i
		}
		if delay {
			slices.SortStableFunc(order, func(a, b int) int {
				return samples[a].knownAt(target).Compare(samples[b].knownAt(target))
			})
		}
		made, upper := make([]float64, len(samples)), make([]float64, len(samples))
		var y [1]float64
		for i := range samples {
			for len(order) > 0 && order[0] < i && !(delay && samples[order[0]].knownAt(target).After(samples[i].At)) {
				n := order[0]
				order = order[1:]
				l.Label(rows[n][:], samples[n].label(target), made[n], upper[n], samples[n].knownAt(target))
			}
			if i > 0 && i%evaluateEvery == 0 {
				if err := l.Refit(); err != nil && !errors.Is(err, boost.ErrNoData) {
					return nil, err
				}
			}
			if l.Predict(y[:], rows[i][:]) {
				made[i], upper[i] = y[0], y[0]*l.Upper(l.Bucket(rows[i][:]))
				set(&predictions[i], target, made[i], upper[i])
			}
		}
	}
	return predictions, nil
}

func (s *Sample) label(target learn.Target) float64 {
	if target == ttft {
		return s.TTFT
	}
	return s.TPOT
}

// knownAt is when a latency of the sample becomes known.
func (s *Sample) knownAt(target learn.Target) time.Time {
	ms := func(v float64) time.Duration {
		if !(v > 0) {
			return 0
		}
		return milliseconds(v)
	}
	at := s.At.Add(ms(s.TTFT))
	if target == ttft {
		return at
	}
	return at.Add(ms(s.TPOT * float64(max(s.Request.ExpectedOutputTokens-1, 1))))
}
