package main

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
)

const (
	blockRows  = 1000 // between two fits
	forgetRows = 2000
	// seenEnough is the share of a block's rows whose regime must have been seen before, or the
	// block does not count.
	seenEnough = 0.9
)

// target is a latency to learn, by row, in milliseconds. A prediction of zero is none.
type target struct{ label, predicted, upper []float64 }

func (t *target) add(label float64, has bool, predicted, upper time.Duration) {
	if !has {
		predicted, upper = 0, 0
	}
	t.label = append(t.label, label)
	t.predicted = append(t.predicted, predicted.Seconds()*1e3)
	t.upper = append(t.upper, upper.Seconds()*1e3)
}

// errorOf returns the absolute percentage error of a row as a share; false without a label or a
// prediction.
func (t *target) errorOf(i int) (float64, bool) {
	y := t.label[i]
	if !(y > 0) || math.IsInf(y, 1) || t.predicted[i] == 0 {
		return 0, false
	}
	return math.Abs(t.predicted[i]-y) / y, true
}

// accuracy is in percent. The standard errors say how much mean and p90 would vary with other
// rows of the same kind.
type accuracy struct {
	MAPE      float64 `json:"mape"`
	P90       float64 `json:"p90"`
	MAPEError float64 `json:"mape_standard_error"`
	P90Error  float64 `json:"p90_standard_error"`
	Rows      int     `json:"rows"`
}

// forgetting is the accuracy on the first rows of one regime, in percent.
type forgetting struct {
	TTFT float64 `json:"ttft_mape"`
	TPOT float64 `json:"tpot_mape"`
}

// covered is how many rows are below their 90 % upper bound, in percent. WorstBlock is the lowest
// share, for either latency, in any 1,000 rows between two refits whose regimes had been seen
// before; WorstRegime the lowest in any regime from its second block on.
type covered struct {
	TTFT        float64 `json:"p90_ttft"`
	TPOT        float64 `json:"p90_tpot"`
	WorstBlock  float64 `json:"worst_block"`
	WorstRegime float64 `json:"worst_regime"`
}

// accuracyReport is the output. All shares are in percent.
type accuracyReport struct {
	Unit       string              `json:"unit"`
	Rows       int                 `json:"rows"`
	TTFT       accuracy            `json:"ttft"`
	TPOT       accuracy            `json:"tpot"`
	Forgetting *forgetting         `json:"forgetting,omitempty"`
	Coverage   covered             `json:"coverage"`
	Regimes    map[string]byRegime `json:"regimes,omitempty"`

	Order []string `json:"-"` // of the regimes, as they appeared
}

// byRegime is the accuracy in one regime.
type byRegime struct {
	TTFT accuracy `json:"ttft"`
	TPOT accuracy `json:"tpot"`
}

// assess evaluates both latencies: it trains on what has been labelled by then, refits every 1,000
// rows and predicts the next 1,000. Forget names the regime whose first 2,000 rows show what has
// been forgotten; empty: none. With delay, labels become known at the first token and at the
// end of the response, not at once.
func assess(samples []sample, forget string, delay bool) (*accuracyReport, error) {
	if len(samples) <= blockRows {
		return nil, fmt.Errorf("%d rows are too few, the first %d only train", len(samples), blockRows)
	}
	recorded := make([]predict.Sample, len(samples))
	for i := range samples {
		recorded[i] = samples[i].Sample
	}
	predictions, err := predict.Evaluate(recorded, delay)
	if err != nil {
		return nil, err
	}
	ttft, tpot := &target{}, &target{}
	for i, p := range predictions {
		ttft.add(samples[i].TTFT, p.Has&endpick.TTFT != 0, p.TTFT, p.TTFTUpper)
		tpot.add(samples[i].TPOT, p.Has&endpick.TPOT != 0, p.TPOT, p.TPOTUpper)
	}
	of := func(regime string, most int) byRegime {
		in := func(s *sample) bool { return regime == "" || s.regime == regime }
		return byRegime{accuracyOf(samples, ttft, most, in), accuracyOf(samples, tpot, most, in)}
	}
	all := of("", len(samples))
	r := &accuracyReport{Unit: "percent", Rows: len(samples), TTFT: all.TTFT, TPOT: all.TPOT, Coverage: coverage(samples, ttft, tpot)}
	for i := range samples {
		name := samples[i].regime
		if _, ok := r.Regimes[name]; ok || name == "" {
			continue
		}
		if r.Regimes == nil {
			r.Regimes = map[string]byRegime{}
		}
		r.Regimes[name] = of(name, len(samples))
		r.Order = append(r.Order, name)
	}
	if forget != "" {
		if _, ok := r.Regimes[forget]; !ok {
			return nil, fmt.Errorf("no row has the regime %q", forget)
		}
		first := of(forget, forgetRows)
		r.Forgetting = &forgetting{first.TTFT.MAPE, first.TPOT.MAPE}
	}
	return r, nil
}

// accuracyOf is the accuracy over the first most rows that were predicted and are in the sample.
func accuracyOf(samples []sample, t *target, most int, in func(*sample) bool) accuracy {
	var errs []float64
	for i := range samples {
		if e, ok := t.errorOf(i); ok && in(&samples[i]) && len(errs) < most {
			errs = append(errs, e)
		}
	}
	a := accuracy{Rows: len(errs)}
	if len(errs) > 0 {
		mean, p90 := meanAndP90(errs)
		a.MAPE, a.P90 = percent(mean), percent(p90)
		ofMean, ofP90 := standardErrors(errs, mean)
		a.MAPEError, a.P90Error = percent(ofMean), percent(ofP90)
	}
	return a
}

// meanAndP90 sorts errors and returns their mean and 90th percentile.
func meanAndP90(errs []float64) (mean, p90 float64) {
	slices.Sort(errs)
	for _, e := range errs {
		mean += e
	}
	n := len(errs)
	return mean / float64(n), errs[(n*9+9)/10-1]
}

// standardErrors returns those of the mean and of the 90th percentile of sorted errors. Of n errors
// drawn again, a number with variance 0.09·n lies above the percentile, so that its rank among
// these is off by the root of that.
func standardErrors(sorted []float64, mean float64) (ofMean, ofP90 float64) {
	n := float64(len(sorted))
	variance := 0.0
	for _, e := range sorted {
		variance += (e - mean) * (e - mean)
	}
	places := math.Sqrt(0.09 * n)
	at := func(place float64) float64 { return sorted[int(min(max(place, 0), n-1))] }
	return math.Sqrt(variance) / n, (at(0.9*n+places) - at(0.9*n-places)) / 2
}

// below counts the rows below their upper bound.
type below struct{ held, rows int }

func (s below) percent() float64 {
	if s.rows == 0 {
		return 0
	}
	return percent(float64(s.held) / float64(s.rows))
}

func coverage(samples []sample, targets ...*target) covered {
	c := covered{WorstBlock: 100, WorstRegime: 100}
	for i, t := range targets {
		var all below
		seen := map[string]bool{}
		regimes := map[string]below{}
		for from := 0; from < len(samples); from += blockRows {
			block := samples[from:min(from+blockRows, len(samples))]
			var here below
			known := 0
			for j := range block {
				if _, ok := t.errorOf(from + j); !ok {
					continue
				}
				held := 0
				if t.label[from+j] <= t.upper[from+j] {
					held = 1
				}
				here.rows, here.held = here.rows+1, here.held+held
				if name := block[j].regime; seen[name] {
					known++
					g := regimes[name]
					regimes[name] = below{g.held + held, g.rows + 1}
				}
			}
			all.rows, all.held = all.rows+here.rows, all.held+here.held
			if here.rows >= blockRows/2 && float64(known) >= seenEnough*float64(here.rows) {
				c.WorstBlock = min(c.WorstBlock, here.percent())
			}
			for j := range block {
				seen[block[j].regime] = true
			}
		}
		for _, g := range regimes {
			if g.rows >= blockRows/2 {
				c.WorstRegime = min(c.WorstRegime, g.percent())
			}
		}
		if i == 0 {
			c.TTFT = all.percent()
		} else {
			c.TPOT = all.percent()
		}
	}
	return c
}

// percent rounds a share to a thousandth of a percent, to keep reports short and comparable.
func percent(v float64) float64 { return math.Round(v*1e5) / 1e3 }
