package slo

import (
	"github.com/endpick/endpick"
)

// TierConfig configures a Tier. The zero value is the paper's configuration.
type TierConfig struct {
	// Headroom measures the headroom. Nil: one with the default config.
	Headroom *Headroom
	// Exploration is the probability with which the candidates that miss the
	// SLO are kept instead, in (0, 1). Zero: 0.01.
	Exploration        float64
	DisableExploration bool
}

// Tier is the headroom tier filter (GIE, "SLO enforcement"): it keeps the
// candidates that are expected to meet the SLO, or with a small probability
// the others, so that the recovery of an endpoint is noticed. If no candidate
// meets the SLO, all stay. A candidate without a prediction always stays.
//
// A request without an SLO is only kept away from endpoints where it would
// break the TPOT target of a running request.
//
// Tier is safe for concurrent use and belongs to one router.
type Tier struct {
	headroom *Headroom
	explore  endpick.Exploration
}

// NewTier returns a Tier, or an [endpick.ConfigError].
func NewTier(config TierConfig) (*Tier, error) {
	chance, err := endpick.NewExploration("slo.TierConfig.Exploration", config.Exploration, config.DisableExploration)
	if err != nil {
		return nil, err
	}
	return &Tier{headroom: config.Headroom.orDefault(), explore: chance}, nil
}

// Name is what receipts show.
func (*Tier) Name() string { return "slo-tier" }

// Observer returns the Headroom, which observes leases.
func (t *Tier) Observer() any { return t.headroom }

var saltTier = endpick.Salt("slo/tier")

// Filter implements [endpick.Filter].
func (t *Tier) Filter(req *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	m := t.headroom.measure(req, t.headroom.config.Bound)
	defer m.end()
	if m.asked == 0 && m.running == nil {
		return candidates
	}
	var f Fit
	met := false
	for i := 0; i < len(candidates) && !met; i++ {
		m.fit(&candidates[i], &f)
		met = f.Meets()
	}
	if !met {
		return candidates
	}
	explore := t.explore.Hits(req, saltTier)
	// If all meet the SLO there is nothing to explore: the empty result means no
	// opinion.
	return endpick.Keep(candidates, func(c *endpick.Candidate) bool {
		m.fit(c, &f)
		return !f.Known || f.Meets() != explore
	})
}
