package slo

import (
	"fmt"
	"math"
	"time"

	"github.com/endpick/endpick"
)

// Strategy says which of the candidates that meet the targets is best.
type Strategy uint8

const (
	// Least is best fit: the least headroom, which keeps other endpoints free
	// for requests that need more.
	Least Strategy = iota
	// Most is the most headroom, which leaves more room for surprises.
	Most
)

// BestFitConfig configures a BestFit. The zero value is the paper's
// configuration.
type BestFitConfig struct {
	// Headroom measures the headroom. Nil: one with the default config.
	Headroom *Headroom
	// Strategy applies to requests with an SLO. Zero: Least.
	Strategy Strategy
	// PrefillRate, in prompt tokens per second, makes a request without an SLO
	// consider the requests that are already there: each of the BS requests on
	// an endpoint waits while the F new tokens are prefilled, and this sum of
	// delays, BS·F/PrefillRate, counts like the request's own latency. The
	// order of magnitude is enough. Zero: only the request's own latency
	// counts, as in the paper.
	PrefillRate float64
	// Exploration is the probability that, if only some candidates are
	// predicted, the others are preferred, so that there is something to
	// learn from. In (0, 1); zero: 0.01.
	Exploration        float64
	DisableExploration bool
}

func (c *BestFitConfig) validate() error {
	if c.Strategy > Most {
		return &endpick.ConfigError{Field: "slo.BestFitConfig.Strategy", Reason: fmt.Sprintf("is %d", c.Strategy)}
	}
	if !(c.PrefillRate >= 0) || math.IsInf(c.PrefillRate, 1) {
		return &endpick.ConfigError{Field: "slo.BestFitConfig.PrefillRate", Reason: fmt.Sprintf("is %v", c.PrefillRate)}
	}
	c.Headroom = c.Headroom.orDefault()
	return nil
}

// BestFit scores candidates by predicted latency (GIE, "Scoring Strategy").
// Scores are within [0, 1].
//
// With an SLO: candidates that meet every target come first, by combined
// headroom, the least or the most as the Strategy says; then those that miss
// one, idle ones before busy ones, by the smallest deficit. See [Fit].
//
// Without an SLO: the lowest predicted latency comes first, TTFT + E[output
// tokens]·TPOT, whatever the strategy; with a PrefillRate the lowest sum of
// that and the delay for others. That delay is what the product of LMetric
// measures (LMetric, section 5): a greedy choice by the request's own latency
// ignores it, and it is far less noisy than the difference of two
// predictions.
//
// A candidate without a prediction is scored by its load and match instead;
// if others have one, it stays below the median of their scores.
//
// BestFit is safe for concurrent use, belongs to one router and must not be
// copied.
type BestFit struct {
	config  BestFitConfig
	explore endpick.Exploration
	work    scratch
}

// NewBestFit returns a BestFit, or an [endpick.ConfigError].
func NewBestFit(config BestFitConfig) (*BestFit, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	chance, err := endpick.NewExploration("slo.BestFitConfig.Exploration", config.Exploration, config.DisableExploration)
	if err != nil {
		return nil, err
	}
	return &BestFit{config: config, explore: chance}, nil
}

// Name is what receipts show.
func (s *BestFit) Name() string {
	if s.config.Strategy == Most {
		return "latency-most"
	}
	return "latency-least"
}

// Observer returns the Headroom, which observes leases.
func (s *BestFit) Observer() any { return s.config.Headroom }

// unscored marks a candidate without a score so far.
const unscored = -1

// Score implements [endpick.Scorer].
func (s *BestFit) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	var predicted int
	if asked(req) == 0 {
		predicted = s.lowestLatency(req, candidates, dst)
	} else {
		predicted = s.bestFit(req, candidates, dst)
	}
	if predicted < len(candidates) {
		s.fallBack(req, candidates, dst, predicted, s.explore.Hits(req, saltUnpredicted))
	}
}

// lowestLatency scores each candidate by the lowest latency divided by its own,
// including the delay for others if that counts: the fastest scores 1, one that
// takes twice as long 0.5.
func (s *BestFit) lowestLatency(req *endpick.Request, candidates []endpick.Candidate, dst []float64) (predicted int) {
	common := commonBasis(req, candidates)
	outputTokens := s.config.Headroom.outputTokens(req)
	lowest := 0.0
	for i := range candidates {
		l := clean(&candidates[i].Prediction, Expected)
		took, ok := l.by(common, outputTokens)
		if !ok {
			dst[i] = unscored
			continue
		}
		if rate := s.config.PrefillRate; rate > 0 {
			c := &candidates[i]
			took += float64(c.NewTokens(req)) * c.BatchSize() / rate * float64(time.Second)
		}
		dst[i] = took
		if predicted == 0 || took < lowest {
			lowest = took
		}
		predicted++
	}
	for i, took := range dst {
		if took != unscored {
			dst[i] = lowest / took
		}
	}
	return predicted
}

// bestFit scores by the share of the SLO: [0.6, 1] for candidates that meet
// their targets, (0.3, 0.5] for idle ones that don't, (0, 0.2] for the rest.
func (s *BestFit) bestFit(req *endpick.Request, candidates []endpick.Candidate, dst []float64) (predicted int) {
	m := s.config.Headroom.measure(req, s.config.Headroom.config.Bound)
	defer m.end()
	var f Fit
	for i := range candidates {
		m.fit(&candidates[i], &f)
		if !f.Known {
			dst[i] = unscored
			continue
		}
		predicted++
		switch groupOf(&f, &candidates[i]) {
		case meets:
			// Combined is at most 1, because no latency is negative.
			if s.config.Strategy == Most {
				dst[i] = 0.6 + 0.4*f.Combined
			} else {
				dst[i] = 1 - 0.4*f.Combined
			}
		case idle:
			dst[i] = 0.3 + 0.2/(1+f.Deficit)
		default:
			dst[i] = 0.2 / (1 + f.Deficit)
		}
	}
	return predicted
}

// The groups of candidates, best first.
const (
	meets = iota
	idle  // misses a target, but nothing waits or runs there
	busy
)

func groupOf(f *Fit, c *endpick.Candidate) int {
	switch {
	case f.Deficit == 0:
		return meets
	case c.BatchSize() == 0:
		return idle
	}
	return busy
}
