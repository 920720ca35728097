package main

import (
	"math"
	"time"

	"github.com/endpick/endpick/predict/boost"
)

// Timing is how long fits take, in milliseconds on one core.
type Timing struct {
	Rows10k float64 `json:"rows_10k"`
	Rows50k float64 `json:"rows_50k"`
}

const timingRuns = 3

// timing measures fits of 10,000 and 50,000 rows, and a prediction per row of a batch of 100. Each
// is the best of several runs. A shorter file is used repeatedly.
func timing(samples []sample) (*Timing, float64, error) {
	config := boost.Config{Features: len(row(&samples[0])), Prior: []int{0, 1, 2, 3, 5, 8, 9}}
	data := func(rows int) boost.Data {
		var d boost.Data
		for i := range rows {
			s := &samples[i%len(samples)]
			d.X = append(d.X, row(s)...)
			d.Y = append(d.Y, s.TTFT)
			d.W = append(d.W, 1)
		}
		return d
	}
	var model *boost.Model
	fit := func(rows int) (float64, error) {
		d := data(rows)
		best := math.Inf(1)
		for range timingRuns {
			began := time.Now()
			m, err := boost.Fit(config, d)
			if err != nil {
				return 0, err
			}
			best = min(best, time.Since(began).Seconds()*1e3)
			model = m
		}
		return best, nil
	}
	var t Timing
	var err error
	if t.Rows10k, err = fit(10_000); err != nil {
		return nil, 0, err
	}
	if t.Rows50k, err = fit(50_000); err != nil {
		return nil, 0, err
	}
	d := data(timingBatch)
	y := make([]float64, timingBatch)
	best := math.Inf(1)
	for range 100 {
		began := time.Now()
		for range 20 {
			if err := model.Predict(y, d.X); err != nil {
				return nil, 0, err
			}
		}
		best = min(best, float64(time.Since(began).Nanoseconds())/(20*timingBatch))
	}
	return &t, best, nil
}

// row is what is known of a request when it is routed, much as the predictor sees it.
func row(s *sample) []float64 {
	c, input, output := &s.Candidate, float64(s.Request.InputTokens), float64(s.Request.ExpectedOutputTokens)
	prefill, fresh := float64(c.InFlight.PrefillTokens), input*(1-s.share)
	return []float64{
		c.KVUsage, input, c.Waiting, c.Running, s.share, prefill, s.PrefillRate, output,
		fresh, fresh + prefill, (fresh + prefill) / (1.01 - c.KVUsage),
	}
}
