package sim

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer"
)

// exactMatcher remembers every block that was ever routed to an endpoint.
type exactMatcher map[endpick.Ref]map[uint64]bool

func (m exactMatcher) Match(req *endpick.Request, candidates []endpick.Candidate) {
	for i := range candidates {
		held := m[candidates[i].Ref]
		n := 0
		for n < len(req.Blocks) && held[req.Blocks[n]] {
			n++
		}
		candidates[i].PrefixTokens = min(n*BlockTokens, req.InputTokens-1)
	}
}

func (m exactMatcher) Routed(e *endpick.Event) {
	held := m[e.Candidate.Ref]
	if held == nil {
		held = map[uint64]bool{}
		m[e.Candidate.Ref] = held
	}
	for _, b := range e.Request.Blocks {
		held[b] = true
	}
}

func (exactMatcher) FirstToken(*endpick.Event)             {}
func (exactMatcher) Done(*endpick.Event, *endpick.Outcome) {}
func (m exactMatcher) EndpointRemoved(ref endpick.Ref)     { delete(m, ref) }

func policy(name string, matcher func() endpick.Matcher, scorers func() []endpick.Weighted) func() (endpick.Config, error) {
	return func() (endpick.Config, error) {
		p := endpick.Policy{Name: name}
		if matcher != nil {
			p.Matcher = matcher()
		}
		if scorers != nil {
			p.Scorers = scorers()
		}
		return endpick.Config{Policy: p}, nil
	}
}

func one(s endpick.Scorer) []endpick.Weighted { return []endpick.Weighted{{Scorer: s, Weight: 1}} }

func exact() endpick.Matcher { return exactMatcher{} }

var (
	random      = policy("random", nil, nil)
	roundRobin  = policy("round-robin", nil, func() []endpick.Weighted { return one(&scorer.RoundRobin{}) })
	leastLoaded = policy("least-loaded", nil, func() []endpick.Weighted { return one(scorer.LeastLoaded{}) })
	vllm        = policy("vllm", nil, func() []endpick.Weighted { return one(scorer.VLLM{}) })
	lmetric     = policy("lmetric", exact, func() []endpick.Weighted { return one(scorer.LMetric{}) })
)
