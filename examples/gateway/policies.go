package main

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/precise"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/slo/delay"
)

// policies are the policies of a gateway by name. Each is made once, so
// that a later reload that names it again finds its models; all share one prefix
// index. It belongs to one router, and is not safe for concurrent use.
type policies struct {
	built map[string]endpick.Policy
	index *prefix.Index // nil: no policy has needed one so far
	// precise wraps the index once engines publish events. Nil: none has so far.
	precise *precise.Index
}

// build returns the policy of that name.
func (ps *policies) build(name string) (endpick.Policy, error) {
	if p, ok := ps.built[name]; ok {
		return p, nil
	}
	c, err := all.ByName(name)
	if err != nil {
		return endpick.Policy{}, err
	}
	if own, ok := c.Policy.Matcher.(*prefix.Index); ok {
		if ps.index == nil {
			ps.index = own
		}
		c.Policy.Matcher = ps.index
	}
	if ps.built == nil {
		ps.built = map[string]endpick.Policy{}
	}
	ps.built[name] = c.Policy
	return c.Policy, nil
}

// compose returns the policy of a gateway in which some models have their own. If
// all have the same, it is that policy, and receipts show its stages; otherwise
// they show which policy has decided, and its score. With events, the index that
// receives them replaces the prefix index.
func (ps *policies) compose(other string, models map[string]modelSettings, events bool) (endpick.Policy, error) {
	rest, err := ps.build(other)
	if err != nil {
		return endpick.Policy{}, err
	}
	c := &perModel{other: newOfModel(rest), models: map[string]*ofModel{}}
	made := map[string]*ofModel{other: c.other}
	for model, m := range models {
		name := cmp.Or(m.Policy, other)
		if made[name] == nil {
			p, err := ps.build(name)
			if err != nil {
				return endpick.Policy{}, err
			}
			made[name] = newOfModel(p)
		}
		c.models[model] = made[name]
	}
	if events && ps.precise == nil && ps.index != nil {
		if ps.precise, err = precise.New(precise.Config{Approximate: ps.index}); err != nil {
			return endpick.Policy{}, err
		}
	}
	if len(made) == 1 {
		if ps.precise != nil && rest.Matcher != nil {
			rest.Matcher = ps.precise
		}
		return rest, nil
	}
	for _, m := range made {
		c.listen(m)
	}
	p := endpick.Policy{
		Name: "per model", Predictor: (*perModelPredictor)(c),
		Admitters: []endpick.Admitter{c}, Filters: []endpick.Filter{c}, Scorers: []endpick.Weighted{{Scorer: c, Weight: 1}}, Picker: c,
	}
	switch {
	case ps.precise != nil:
		p.Matcher = ps.precise
	case ps.index != nil:
		p.Matcher = ps.index
	}
	return p, nil
}

// perModel is a policy that delegates to one policy per model. Its stages are
// shared with those policies, so that it can be replaced without losing state.
type perModel struct {
	models map[string]*ofModel
	other  *ofModel // of models without one of their own

	stages []any // of all policies
}

// ofModel is the policy of some models.
type ofModel struct {
	endpick.Policy
	weights []float64 // of the scorers, with sum 1
	scratch sync.Pool // *[]float64
}

func newOfModel(p endpick.Policy) *ofModel {
	m := &ofModel{Policy: p}
	if m.Picker == nil {
		m.Picker = endpick.MaxScore{}
	}
	sum := 0.0
	for _, w := range p.Scorers {
		sum += w.Weight
	}
	for _, w := range p.Scorers {
		m.weights = append(m.weights, w.Weight/sum)
	}
	m.scratch.New = func() any { return new([]float64) }
	return m
}

// of returns the policy of a request.
func (c *perModel) of(req *endpick.Request) *ofModel {
	if m := c.models[req.Model]; m != nil {
		return m
	}
	return c.other
}

// Observer returns the stages of all policies, which observe all requests: what runs
// on an endpoint counts, whichever policy has sent it there. The router notifies the
// index itself.
func (c *perModel) Observer() any { return c.stages }

// listen adds the stages of a policy.
func (c *perModel) listen(m *ofModel) {
	c.stages = append(c.stages, m.Predictor, m.Picker)
	for _, a := range m.Admitters {
		c.stages = append(c.stages, a)
	}
	for _, f := range m.Filters {
		c.stages = append(c.stages, f)
	}
	for _, s := range m.Scorers {
		c.stages = append(c.stages, s.Scorer)
	}
}

// Name is what receipts show.
func (c *perModel) Name() string { return "of the model's policy" }

// Admit implements [endpick.Admitter].
func (c *perModel) Admit(req *endpick.Request, candidates []endpick.Candidate) error {
	admitters := c.of(req).Admitters
	for i, a := range admitters {
		if err := a.Admit(req, candidates); err != nil {
			withdraw(admitters[:i], req)
			return err
		}
	}
	return nil
}

// Withdrawn is called for a request that was admitted but not routed.
func (c *perModel) Withdrawn(req *endpick.Request) { withdraw(c.of(req).Admitters, req) }

func withdraw(admitted []endpick.Admitter, req *endpick.Request) {
	for _, a := range admitted {
		if w, ok := a.(interface{ Withdrawn(*endpick.Request) }); ok {
			w.Withdrawn(req)
		}
	}
}

// Filter implements [endpick.Filter].
func (c *perModel) Filter(req *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	for _, f := range c.of(req).Filters {
		if left := f.Filter(req, candidates); len(left) > 0 {
			candidates = left
		}
	}
	return candidates
}

// Score implements [endpick.Scorer], as the router combines scores.
func (c *perModel) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	m := c.of(req)
	if len(m.Scorers) == 1 {
		m.Scorers[0].Scorer.Score(req, candidates, dst)
		return
	}
	clear(dst)
	scratch := m.scratch.Get().(*[]float64)
	defer m.scratch.Put(scratch)
	*scratch = slices.Grow((*scratch)[:0], len(dst))
	one := (*scratch)[:len(dst)]
	for i, w := range m.Scorers {
		clear(one)
		w.Scorer.Score(req, candidates, one)
		for j, v := range one {
			if math.IsNaN(v) {
				v = 0
			}
			dst[j] = min(dst[j]+float64(m.weights[i]*min(max(v, 0), 1)), 1)
		}
	}
}

// Explain gives the reasons of the model's scorers, for receipts.
func (c *perModel) Explain(req *endpick.Request, candidates []endpick.Candidate, dst []string) {
	one := make([]string, len(dst))
	for _, w := range c.of(req).Scorers {
		x, ok := w.Scorer.(interface {
			Explain(*endpick.Request, []endpick.Candidate, []string)
		})
		if !ok {
			continue
		}
		clear(one)
		x.Explain(req, candidates, one)
		for i, text := range one {
			if dst[i] != "" && text != "" {
				text = "; " + text
			}
			dst[i] += text
		}
	}
}

// Pick implements [endpick.Picker].
func (c *perModel) Pick(req *endpick.Request, candidates []endpick.Candidate, scores []float64) int {
	return c.of(req).Picker.Pick(req, candidates, scores)
}

type perModelPredictor perModel

// Predict implements [endpick.Predictor].
func (c *perModelPredictor) Predict(req *endpick.Request, candidates []endpick.Candidate) {
	if p := (*perModel)(c).of(req).Predictor; p != nil {
		p.Predict(req, candidates)
	}
}

// measured returns what the policies that the settings name know of latencies, and of loads: only one
// counts those.
func (ps *policies) measured(s *settings) (latencies []predict.Latency, loads delay.Marginal) {
	names := map[string]bool{s.Policy: true}
	for _, m := range s.Models {
		names[m.Policy] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) { // the first counts, if several learn a model
		switch p := ps.built[name].Predictor.(type) {
		case predict.Latency:
			latencies = append(latencies, p)
		case delay.Marginal:
			loads = p
		}
	}
	return latencies, loads
}
