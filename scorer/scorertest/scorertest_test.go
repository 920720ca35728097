package scorertest_test

import (
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/scorer/scorertest"
)

func TestPoliciesConform(t *testing.T) {
	for name, p := range map[string]func() endpick.Policy{
		"zero": func() endpick.Policy { return endpick.Policy{} },
		"weighted": func() endpick.Policy {
			return endpick.Policy{
				Filters: []endpick.Filter{scorer.MatchGate(scorer.MatchGateConfig{Range: 8})},
				Scorers: []endpick.Weighted{{Scorer: scorer.NoHitLRU(), Weight: 1}, {Scorer: scorer.QueueDepth(), Weight: 2}},
				Picker:  endpick.WeightedRandom{},
			}
		},
		"power of two": func() endpick.Policy {
			return endpick.Policy{
				Scorers: []endpick.Weighted{{Scorer: scorer.LMetric(), Weight: 1}},
				Picker:  endpick.PowerOfTwo{},
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			scorertest.RunPolicy(t, func(*testing.T) endpick.Policy { return p() })
		})
	}
}
