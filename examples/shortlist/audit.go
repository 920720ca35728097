package main

import (
	"fmt"
	"slices"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/sim"
	"github.com/endpick/endpick/scorer/preset"
)

// audit makes each decision of a policy twice: among all candidates, which is what
// happens, and among those that its shortlist lets through.
type audit struct {
	policy endpick.Policy
	short  endpick.Filter
	list   []endpick.Candidate
	scores []float64

	narrowed bool // the list is shorter than all
	Decisions,
	Narrowed, // that the shortlist had an opinion of
	Same int // of these
	Listed int     // candidates on their lists
	Regret float64 // the sum of what the scores of other choices were below the best, as shares
}

// newAudit puts itself into the place of a policy's shortlist, and before its picker.
func newAudit(config *endpick.Config) *audit {
	a := &audit{policy: config.Policy}
	last := len(config.Policy.Shortlist) - 1
	a.short = config.Policy.Shortlist[last]
	config.Policy.Shortlist = append(slices.Clone(config.Policy.Shortlist[:last]), a)
	config.Policy.Picker = a
	return a
}

// Filter implements [endpick.Filter]: it notes what the shortlist would let through, and
// lets all through.
func (a *audit) Filter(req *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	a.list = append(a.list[:0], candidates...)
	a.list = a.short.Filter(req, a.list)
	a.narrowed = len(a.list) < len(candidates)
	return candidates
}

// Pick implements [endpick.Picker].
func (a *audit) Pick(req *endpick.Request, candidates []endpick.Candidate, scores []float64) int {
	best := endpick.MaxScore{}.Pick(req, candidates, scores)
	a.Decisions++
	left := a.list
	a.policy.Predictor.Predict(req, left)
	// The shortlist learns from its own decisions alone.
	a.short.(endpick.RoutedObserver).Routed(&endpick.Event{Request: req, Candidate: &left[0], Candidates: left})
	if !a.narrowed {
		return best
	}
	a.Narrowed++
	a.Listed += len(left)
	for _, f := range a.policy.Filters {
		if kept := f.Filter(req, left); len(kept) > 0 {
			left = kept
		}
	}
	a.scores = slices.Grow(a.scores[:0], len(left))[:len(left)]
	a.policy.Scorers[0].Scorer.Score(req, left, a.scores)
	ref := left[endpick.MaxScore{}.Pick(req, left, a.scores)].Ref
	if ref == candidates[best].Ref {
		a.Same++
		return best
	}
	at := slices.IndexFunc(candidates, func(c endpick.Candidate) bool { return c.Ref == ref })
	if at >= 0 {
		a.Regret += (scores[best] - scores[at]) / scores[best]
	} else {
		a.Regret++ // a filter has removed it
	}
	return best
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
	// Whatever a workload shares is shared by as many servers as in the scenario.
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

func policy(name string) (endpick.Config, error) { return preset.ByName(name) }

// audit runs the cell with everybody predicted.
func (c cell) audit() (a *audit, err error) {
	cfg, err := c.config(func() (endpick.Config, error) {
		config, err := policy("predicted-latency:synchronous")
		if err == nil {
			a = newAudit(&config)
		}
		return config, err
	})
	if err != nil {
		return nil, err
	}
	_, err = sim.Run(cfg)
	return a, err
}

// latency is the mean latency of the cell's requests with a policy, in milliseconds.
func (c cell) latency(name string) (float64, error) {
	cfg, err := c.config(func() (endpick.Config, error) { return policy(name) })
	if err != nil {
		return 0, err
	}
	report, err := sim.Run(cfg)
	if err != nil {
		return 0, err
	}
	return report.E2E.Mean, nil
}
