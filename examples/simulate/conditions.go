package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/sim"
)

// conditions are what a policy is run under. They follow its name:
// marginal-delay+noise=0.2+reports=1s, lmetric+routers=4+share=index+delay=50ms.
type conditions struct {
	noise   float64       // standard deviation of a relative error of each prediction
	length  float64       // factor on the predicted time of decoding, as if responses were that much longer; 0: none
	reports time.Duration // interval of the engines' reports; 0: not given
	routers int           // in front of the fleet; 0: not given
	share   string        // what they tell each other, as -share says; empty: not given
	delay   time.Duration // of what they tell each other
	late    time.Duration // delay of the engines' events, for +events
	lost    float64       // share of batches of events that are lost
}

// conditionsOf splits a policy's name from its conditions.
func conditionsOf(name string) (string, conditions, error) {
	c := conditions{delay: shareDelay}
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
		case "routers":
			if c.routers, err = strconv.Atoi(value); err == nil && c.routers < 1 {
				err = fmt.Errorf("is less than one")
			}
		case "share":
			if c.share, err = value, nil; !slices.Contains(shares, value) {
				err = fmt.Errorf("is none of %s", strings.Join(shares, ", "))
			}
		case "delay":
			c.delay, err = waiting(value)
		case "late":
			c.late, err = waiting(value)
		case "lost":
			c.lost = number
			if err == nil && !(number > 0 && number < 1) {
				err = fmt.Errorf("is not within (0, 1)")
			}
		default:
			rest, err = append(rest, part), nil
		}
		if err != nil {
			return "", c, usage("%s: +%s=%s: %v (want a number, or a duration for reports, delay and late)", parts[0], key, value, err)
		}
	}
	plain := strings.Join(rest, "+")
	if (c.late > 0 || c.lost > 0) && !strings.HasSuffix(plain, listening) {
		return "", c, usage("%s: +late and +lost are for policies with +events", parts[0])
	}
	if c.delay != shareDelay && c.share == "" {
		return "", c, usage("%s: +delay is for policies with +share", parts[0])
	}
	return plain, c, nil
}

// waiting parses a time that something takes to arrive.
func waiting(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err == nil && !(d >= 0 && d <= time.Hour) {
		err = fmt.Errorf("is not within [0, 1h]")
	}
	return d, err
}

// configure applies the conditions in a policy's name to a simulation. Events are those of
// policies with +events.
func configure(config *sim.Config, policy string, events sim.Events) error {
	plain, c, err := conditionsOf(policy)
	if err != nil {
		return err
	}
	if strings.HasSuffix(plain, listening) {
		events.Delay, events.Loss = max(events.Delay, c.late), max(events.Loss, c.lost)
		config.Events = &events
	}
	if c.reports > 0 {
		config.ReportInterval = c.reports
	}
	if c.routers > 0 {
		config.Routers = c.routers
	}
	if c.share != "" {
		config.Sharing = sharing(c.share, c.delay)
	}
	return nil
}

// shares are what routers may tell each other, and shareDelay how long that takes by default.
var shares = []string{"none", "load", "index"}

const shareDelay = 5 * time.Millisecond

func sharing(what string, delay time.Duration) *sim.Sharing {
	if what == "none" {
		return nil
	}
	return &sim.Sharing{Delay: delay, LoadOnly: what == "load"}
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
