package slo

import (
	"math"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
)

// BestFitConfig configures [NewBestFit]. The zero value is the paper's
// configuration.
type BestFitConfig struct {
	// Headroom measures the headroom. Nil: one with the default config.
	Headroom *Headroom
	// MostHeadroom prefers, among the candidates that meet the targets of a request,
	// the one with the most headroom, which leaves more room for surprises. False:
	// the one with the least, which leaves other endpoints free for requests that
	// need more.
	MostHeadroom bool
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
	if !(c.PrefillRate >= 0) || math.IsInf(c.PrefillRate, 1) {
		return check.Bad("slo.BestFitConfig.PrefillRate", "is %v", c.PrefillRate)
	}
	c.Headroom = c.Headroom.orDefault()
	return nil
}

// NewBestFit returns a scorer by predicted latency (GIE, "Scoring Strategy"), or an
// [endpick.ConfigError]. Scores are within [0, 1].
//
// With an SLO: candidates that meet every target come first, by combined
// headroom, the least or, with MostHeadroom, the most; then those that miss one,
// idle ones before busy ones, by the smallest deficit. See [Headroom].
//
// Without an SLO: the lowest predicted latency comes first, TTFT + E[output
// tokens]·TPOT; with a PrefillRate the lowest sum of that and the delay for
// others. That delay is what the product of LMetric
// measures (LMetric, section 5): a choice by the request's own latency alone
// ignores it, and it is far less noisy than the difference of two
// predictions.
//
// A candidate without a prediction is scored by its load and match instead;
// if others have one, it stays below the median of their scores.
//
// It belongs to one router.
func NewBestFit(config BestFitConfig) (endpick.Scorer, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	chance, err := endpick.NewExploration("slo.BestFitConfig.Exploration", config.Exploration, config.DisableExploration)
	if err != nil {
		return nil, err
	}
	return &bestFit{config: config, explore: chance}, nil
}

type bestFit struct {
	config  BestFitConfig
	explore endpick.Exploration
	work    sync.Pool // *[]float64
}

func (s *bestFit) Name() string {
	if s.config.MostHeadroom {
		return "latency-most"
	}
	return "latency-least"
}

func (s *bestFit) Observer() any { return &s.config.Headroom.running }

// unscored marks a candidate without a score so far.
const unscored = -1

func (s *bestFit) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	var predicted int
	if asked(req) == 0 {
		predicted = s.byLatency(req, candidates, dst)
	} else {
		predicted = s.byHeadroom(req, candidates, dst)
	}
	if predicted < len(candidates) {
		s.fallBack(req, candidates, dst, predicted, s.explore.Hits(req, saltUnpredicted))
	}
}

// byLatency scores each candidate by the lowest latency divided by its own,
// including the delay for others if that counts: the fastest scores 1, one that
// takes twice as long 0.5.
func (s *bestFit) byLatency(req *endpick.Request, candidates []endpick.Candidate, dst []float64) (predicted int) {
	common := commonBasis(req, candidates)
	outputTokens := s.config.Headroom.outputTokens(req)
	lowest := 0.0
	for i := range candidates {
		l := clean(&candidates[i].Prediction, false)
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

// byHeadroom scores by the share of the SLO: [0.6, 1] for candidates that meet
// their targets, (0.3, 0.5] for idle ones that don't, (0, 0.2] for the rest.
func (s *bestFit) byHeadroom(req *endpick.Request, candidates []endpick.Candidate, dst []float64) (predicted int) {
	m := s.config.Headroom.measure(req, s.config.Headroom.config.UpperBound)
	defer m.end()
	var f fit
	for i := range candidates {
		m.fit(&candidates[i], &f)
		if !f.Known {
			dst[i] = unscored
			continue
		}
		predicted++
		switch groupOf(&f, &candidates[i]) {
		case meets:
			dst[i] = 1 - 0.4*f.Combined // which is at most 1, because no latency is negative
			if s.config.MostHeadroom {
				dst[i] = 0.6 + 0.4*f.Combined
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

func groupOf(f *fit, c *endpick.Candidate) int {
	switch {
	case f.Deficit == 0:
		return meets
	case c.BatchSize() == 0:
		return idle
	}
	return busy
}
