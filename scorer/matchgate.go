package scorer

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
)

// MatchGate keeps the candidates with the longest match, unless load is out of
// balance; then it keeps all. The scorer after it decides among the rest.
//
// AIBrix has Range 8 before [LeastLoaded]; SGLang's cache-aware policy Share 0.5,
// Range 32 and Ratio 1.1 before LeastLoaded; Preble Share 0.5 before a cost.
func MatchGate(config MatchGateConfig) endpick.Filter { return matchGate{config} }

// MatchGateConfig configures a MatchGate. The zero value always prefers the longest
// match.
type MatchGateConfig struct {
	// Share is the share of the prompt that the longest match must exceed. Zero:
	// any match counts.
	Share float64
	// Range and Ratio say when load is out of balance: the largest batch size
	// is more than Range above the smallest, and more than Ratio times it.
	// Range zero: balance is ignored.
	Range float64
	Ratio float64
}

type matchGate struct{ config MatchGateConfig }

func (g matchGate) Validate() error {
	c := g.config
	switch {
	case !(c.Share >= 0 && c.Share < 1):
		return check.Bad("scorer.MatchGateConfig.Share", "is %v, not within [0, 1)", c.Share)
	case !(c.Range >= 0):
		return check.Bad("scorer.MatchGateConfig.Range", "is %v, not zero or above", c.Range)
	case !(c.Ratio >= 0):
		return check.Bad("scorer.MatchGateConfig.Ratio", "is %v, not zero or above", c.Ratio)
	}
	return nil
}

func (matchGate) Name() string { return "match-gate" }

func (g matchGate) Filter(req *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	if g.config.Range > 0 {
		least, most := batchRange(candidates)
		if most-least > g.config.Range && most > g.config.Ratio*least {
			return candidates
		}
	}
	longest, share := 0, 0.0
	for i := range candidates {
		if h := candidates[i].PrefixTokens; h > longest {
			longest, share = h, candidates[i].MatchShare(req)
		}
	}
	if longest == 0 || share <= g.config.Share {
		return candidates
	}
	return endpick.Keep(candidates, func(c *endpick.Candidate) bool { return c.PrefixTokens == longest })
}
