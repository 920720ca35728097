package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/delay"
)

// conditions are impairments of a policy for an ablation. They follow its name:
// marginal-delay+noise=0.2+reports=1s.
type conditions struct {
	noise   float64       // standard deviation of a relative error of each prediction
	length  float64       // factor on the predicted time of decoding, as if responses were that much longer; 0: none
	reports time.Duration // interval of the engines' reports; 0: fresh
}

// conditionsOf splits a policy's name from its conditions.
func conditionsOf(name string) (string, conditions, error) {
	var c conditions
	parts := strings.Split(name, "+")
	rest := parts[:1]
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(part, "=")
		number, err := strconv.ParseFloat(value, 64)
		switch key {
		case "noise":
			c.noise = number
			if !(number > 0 && number < 0.5) {
				err = fmt.Errorf("is not within (0, 0.5)")
			}
		case "length":
			c.length = number
			if !(number >= 0.01 && number <= 100) {
				err = fmt.Errorf("is not within [0.01, 100]")
			}
		case "reports":
			if c.reports, err = time.ParseDuration(value); err == nil && !(c.reports > 0 && c.reports <= time.Hour) {
				err = fmt.Errorf("is not within (0, 1h]")
			}
		default:
			rest, err = append(rest, part), nil
		}
		if err != nil {
			return "", c, usage("%s: +%s=%s: %v (want a number, or a duration for reports)", parts[0], key, value, err)
		}
	}
	return strings.Join(rest, "+"), c, nil
}

// apply inserts the conditions between the policy's predictor and its users.
func (c conditions) apply(config *endpick.Config) error {
	if c.noise == 0 && c.length == 0 {
		return nil
	}
	if config.Policy.Predictor == nil {
		return usage("%s predicts nothing that could be wrong", config.Policy.Name)
	}
	if c.length == 0 {
		c.length = 1
	}
	config.Policy.Predictor = &worse{config.Policy.Predictor, c}
	// No candidate is dropped because of its true prediction.
	config.Policy.Shortlist = slices.DeleteFunc(slices.Clone(config.Policy.Shortlist), func(f endpick.Filter) bool {
		_, is := f.(*delay.Marginal)
		return is
	})
	return nil
}

// worse is a predictor with impaired predictions.
type worse struct {
	endpick.Predictor
	conditions
}

// Observer returns the predictor itself, which learns from the truth.
func (w *worse) Observer() any { return w.Predictor }

var saltTTFT, saltTPOT = endpick.Salt("simulate/noise/ttft"), endpick.Salt("simulate/noise/tpot")

// Predict implements [endpick.Predictor].
func (w *worse) Predict(req *endpick.Request, candidates []endpick.Candidate) {
	w.Predictor.Predict(req, candidates)
	for i := range candidates {
		c := &candidates[i]
		p := &c.Prediction
		first, each := w.error(req.ChanceOf(saltTTFT, c)), w.error(req.ChanceOf(saltTPOT, c))*w.length
		p.TTFT, p.TTFTUpper = times(p.TTFT, first), times(p.TTFTUpper, first)
		p.TPOT, p.TPOTUpper = times(p.TPOT, each), times(p.TPOTUpper, each)
		p.E2E, p.E2EUpper = times(p.E2E, each), times(p.E2EUpper, each)
	}
}

// error is a factor with mean 1, uniformly distributed.
func (w *worse) error(chance float64) float64 { return 1 + w.noise*math.Sqrt(3)*(2*chance-1) }

func times(d time.Duration, factor float64) time.Duration {
	return time.Duration(float64(d) * factor)
}
