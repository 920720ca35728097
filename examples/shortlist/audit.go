package main

import (
	"fmt"
	"slices"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/sim"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/scorer/preset"
)

// audit makes each decision of a policy twice: among all candidates, which counts,
// and among those of its shortlist.
type audit struct {
	policy endpick.Policy
	short  endpick.Filter
	list   []endpick.Candidate
	scores []float64

	narrowed  bool // the shortlist is shorter
	decisions int
	filling   int // number of decisions while servers fill up
	counts    [2]counts
}

// counts are counts of decisions on which the shortlist has an opinion, separately while
// servers fill up and afterwards.
type counts struct {
	Narrowed, Same int
	Lighter        int     // different choices whose server has no more load in any respect
	Listed         int     // candidates on shortlists
	Regret         float64 // sum over different choices of their score's distance from the best, as a share
}

func (c *counts) same() float64   { return float64(c.Same) / float64(c.Narrowed) }
func (c *counts) regret() float64 { return c.Regret / float64(c.Narrowed) }
func (c *counts) others() string  { return fmt.Sprintf("%d/%d", c.Lighter, c.Narrowed-c.Same) }
func (c *counts) listed() float64 { return float64(c.Listed) / float64(c.Narrowed) }

// newAudit inserts itself in place of a policy's shortlist, and before its picker.
func newAudit(config *endpick.Config, filling int) *audit {
	a := &audit{policy: config.Policy, filling: filling}
	last := len(config.Policy.Shortlist) - 1
	a.short = config.Policy.Shortlist[last]
	config.Policy.Shortlist = append(slices.Clone(config.Policy.Shortlist[:last]), a)
	config.Policy.Picker = a
	return a
}

// Filter implements [endpick.Filter]: it records what the shortlist would keep, and
// keeps all.
func (a *audit) Filter(req *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	a.list = append(a.list[:0], candidates...)
	a.list = a.short.Filter(req, a.list)
	a.narrowed = len(a.list) < len(candidates)
	return candidates
}

// Pick implements [endpick.Picker].
func (a *audit) Pick(req *endpick.Request, candidates []endpick.Candidate, scores []float64) int {
	best := endpick.MaxScore{}.Pick(req, candidates, scores)
	a.decisions++
	left := a.list
	a.policy.Predictor.Predict(req, left)
	// The shortlist only learns from its own decisions.
	a.short.(endpick.RoutedObserver).Routed(&endpick.Event{Request: req, Candidate: &candidates[best], Candidates: left})
	if !a.narrowed {
		return best
	}
	n := &a.counts[1]
	if a.decisions <= a.filling {
		n = &a.counts[0]
	}
	n.Narrowed++
	n.Listed += len(left)
	for _, f := range a.policy.Filters {
		if kept := f.Filter(req, left); len(kept) > 0 {
			left = kept
		}
	}
	a.scores = slices.Grow(a.scores[:0], len(left))[:len(left)]
	a.policy.Scorers[0].Scorer.Score(req, left, a.scores)
	other := &left[endpick.MaxScore{}.Pick(req, left, a.scores)]
	ref := other.Ref
	if ref == candidates[best].Ref {
		n.Same++
		return best
	}
	if lighter(other, &candidates[best]) {
		n.Lighter++
	}
	at := slices.IndexFunc(candidates, func(c endpick.Candidate) bool { return c.Ref == ref })
	if at >= 0 {
		n.Regret += (scores[best] - scores[at]) / scores[best]
	} else {
		n.Regret++ // a filter has removed it
	}
	return best
}

// lighter reports whether a has no more load than b in any respect.
func lighter(a, b *endpick.Candidate) bool {
	return a.BatchSize() <= b.BatchSize() && a.InFlight.PrefillTokens <= b.InFlight.PrefillTokens && a.KVUsage <= b.KVUsage
}

// cell is a scenario with a number of servers, at one of its loads.
type cell struct {
	scenario string
	servers  int
	load     string
	requests int
	seed     uint64
}

func (c cell) config(router func() (endpick.Config, error)) (sim.Config, error) {
	s, err := sim.Scenario(c.scenario)
	if err != nil {
		return sim.Config{}, err
	}
	rate, ok := map[string]float64{"low": s.Loads.Low, "middle": s.Loads.Middle, "high": s.Loads.High}[c.load]
	if !ok {
		return sim.Config{}, fmt.Errorf("load %q is none of low, middle, high", c.load)
	}
	// Each shared prefix is shared by as many servers as in the scenario.
	rate *= float64(c.servers) / float64(s.Servers)
	s.Servers = c.servers
	pace := sim.Pace{Rate: rate, Requests: c.requests}
	if s.Workload.HasArrivals() {
		pace = sim.Pace{RateScale: rate, Requests: c.requests}
	}
	w, err := s.Workload.At(pace)
	if err != nil {
		return sim.Config{}, err
	}
	fleet, err := s.Fleet()
	return sim.Config{Fleet: fleet, Workload: w, Seed: c.seed, Router: router}, err
}

// filling is how many requests per server it takes until servers are full.
const filling = 40

// trainers is how many servers the models are trained with, and trainings how many requests.
const (
	trainers  = 20
	trainings = 8000
)

// learned returns what models have learned from the same work on fewer servers.
func (c cell) learned() ([]byte, error) {
	c.servers, c.requests = trainers, trainings
	var latency *predict.Latency
	cfg, err := c.config(func() (endpick.Config, error) {
		config, err := preset.ByName("predicted-latency:synchronous")
		if err == nil {
			latency = config.Policy.Predictor.(*predict.Latency)
		}
		return config, err
	})
	if err != nil {
		return nil, err
	}
	if _, err := sim.Run(cfg); err != nil {
		return nil, err
	}
	return latency.AppendBinary(nil)
}

// policy is predicted-latency with these models.
func policy(learned []byte, whole bool) (endpick.Config, error) {
	latency, err := predict.Restore(predict.LatencyConfig{Synchronous: true}, learned)
	if err != nil {
		return endpick.Config{}, err
	}
	return preset.PredictedLatency(preset.PredictedLatencyConfig{Learned: latency, DisableShortlist: whole})
}

// audit runs the cell, predicting all endpoints.
func (c cell) audit(learned []byte) (a *audit, err error) {
	cfg, err := c.config(func() (endpick.Config, error) {
		config, err := policy(learned, false)
		if err == nil {
			a = newAudit(&config, filling*c.servers)
		}
		return config, err
	})
	if err != nil {
		return nil, err
	}
	_, err = sim.Run(cfg)
	return a, err
}

// latency is the mean latency of the cell's requests, in milliseconds.
func (c cell) latency(learned []byte, whole bool) (float64, error) {
	cfg, err := c.config(func() (endpick.Config, error) { return policy(learned, whole) })
	if err != nil {
		return 0, err
	}
	report, err := sim.Run(cfg)
	if err != nil {
		return 0, err
	}
	return report.E2E.Mean, nil
}
