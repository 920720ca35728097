package scorer

import (
	"fmt"

	"github.com/endpick/endpick"
)

// MatchGate is a filter that keeps the candidates with the longest match,
// unless load is out of balance; then it keeps all. The scorer after it decides
// among the rest.
//
// AIBrix is MatchGate{Range: 8} before [LeastLoaded]; SGLang's cache-aware
// policy MatchGate{Share: 0.5, Range: 32, Ratio: 1.1} before LeastLoaded;
// Preble MatchGate{Share: 0.5} before a cost. The zero value always prefers the
// longest match.
type MatchGate struct {
	// Share is the share of the prompt that the longest match must exceed. Zero:
	// any match counts.
	Share float64
	// Range and Ratio say when load is out of balance: the largest batch size
	// is more than Range above the smallest, and more than Ratio times it.
	// Range zero: balance is ignored.
	Range float64
	Ratio float64
}

// Validate is called by [endpick.New].
func (g MatchGate) Validate() error {
	switch {
	case !(g.Share >= 0 && g.Share < 1):
		return &endpick.ConfigError{Field: "scorer.MatchGate.Share", Reason: fmt.Sprintf("is %v, not within [0, 1)", g.Share)}
	case !(g.Range >= 0):
		return &endpick.ConfigError{Field: "scorer.MatchGate.Range", Reason: fmt.Sprintf("is %v, not zero or above", g.Range)}
	case !(g.Ratio >= 0):
		return &endpick.ConfigError{Field: "scorer.MatchGate.Ratio", Reason: fmt.Sprintf("is %v, not zero or above", g.Ratio)}
	}
	return nil
}

// Name is what receipts show.
func (MatchGate) Name() string { return "match-gate" }

// Filter implements [endpick.Filter].
func (g MatchGate) Filter(req *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	if g.Range > 0 {
		least, most := batchRange(candidates)
		if most-least > g.Range && most > g.Ratio*least {
			return candidates
		}
	}
	longest, share := 0, 0.0
	for i := range candidates {
		if h := candidates[i].PrefixTokens; h > longest {
			longest, share = h, candidates[i].MatchShare(req)
		}
	}
	if longest == 0 || share <= g.Share {
		return candidates
	}
	return endpick.Keep(candidates, func(c *endpick.Candidate) bool { return c.PrefixTokens == longest })
}
