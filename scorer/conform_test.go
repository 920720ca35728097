package scorer_test

import (
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/scorer/scorertest"
)

func TestScorersConform(t *testing.T) {
	for _, newScorer := range []func() endpick.Scorer{
		func() endpick.Scorer { return scorer.QueueDepth() },
		func() endpick.Scorer { return scorer.KVUsage() },
		func() endpick.Scorer { return scorer.LoadBalance() },
		func() endpick.Scorer { return scorer.LeastLoaded() },
		func() endpick.Scorer { return scorer.PrefixAffinity() },
		func() endpick.Scorer { return scorer.LMetric() },
		func() endpick.Scorer { return scorer.Linear(0) },
		func() endpick.Scorer { return scorer.Dynamo(0) },
		func() endpick.Scorer { return scorer.RoundRobin() },
		func() endpick.Scorer { return scorer.NoHitLRU() },
		func() endpick.Scorer { return scorer.SessionAffinity() },
		func() endpick.Scorer { return scorer.AdapterAffinity() },
		func() endpick.Scorer {
			return scorer.Cost("cost", func(_ *endpick.Request, c *endpick.Candidate) float64 { return c.BatchSize() })
		},
	} {
		name := newScorer().(interface{ Name() string }).Name()
		t.Run(name, func(t *testing.T) {
			scorertest.RunWeighted(t, func(*testing.T) endpick.Scorer { return newScorer() })
		})
	}
}

func TestFiltersConform(t *testing.T) {
	for name, newFilter := range map[string]func() endpick.Filter{
		"match gate": func() endpick.Filter { return scorer.MatchGate(scorer.MatchGateConfig{}) },
		"balanced":   func() endpick.Filter { return scorer.MatchGate(scorer.MatchGateConfig{Range: 8}) },
		"balanced by a half": func() endpick.Filter {
			return scorer.MatchGate(scorer.MatchGateConfig{Share: 0.5, Range: 32, Ratio: 1.1})
		},
		"hotspot": func() endpick.Filter { return scorer.Hotspot(scorer.HotspotConfig{}) },
	} {
		t.Run(name, func(t *testing.T) {
			scorertest.RunFilter(t, func(*testing.T) endpick.Filter { return newFilter() })
		})
	}
}

func TestObserversConform(t *testing.T) {
	for name, newObserver := range map[string]func() any{
		"round robin": func() any { return scorer.RoundRobin() },
		"no-hit LRU":  func() any { return scorer.NoHitLRU() },
		"hotspot":     func() any { return scorer.Hotspot(scorer.HotspotConfig{}) },
	} {
		t.Run(name, func(t *testing.T) {
			scorertest.RunObserver(t, func(*testing.T) any { return newObserver() })
		})
	}
}
