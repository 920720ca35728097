package evaluate

import (
	"math"
	"time"

	"github.com/endpick/endpick/internal/learn"
	"github.com/endpick/endpick/predict/boost"
)

// Timing is how long fits take, in milliseconds on one core.
type Timing struct {
	Rows10k float64 `json:"rows_10k"`
	Rows50k float64 `json:"rows_50k"`
}

const (
	timingRuns = 3
	// TimingBatch is the number of rows that are predicted together.
	TimingBatch = 100
)

// Measure measures fits of 10,000 and 50,000 rows, and a prediction per row of a batch of 100. Each
// is the best of several runs. A shorter file is used repeatedly.
func Measure(samples []Sample) (*Timing, float64, error) {
	config := learn.Latency(learn.TTFT).Boost
	data := func(rows int) boost.Data {
		var d boost.Data
		for i := range rows {
			s := &samples[i%len(samples)]
			d.X = append(d.X, s.row[:]...)
			d.Y = append(d.Y, s.ttft)
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
	d := data(TimingBatch)
	y := make([]float64, TimingBatch)
	best := math.Inf(1)
	for range 100 {
		began := time.Now()
		for range 20 {
			if err := model.Predict(y, d.X); err != nil {
				return nil, 0, err
			}
		}
		best = min(best, float64(time.Since(began).Nanoseconds())/(20*TimingBatch))
	}
	return &t, best, nil
}
