package slo

import "github.com/endpick/endpick"

// TierConfig configures [NewTier]. The zero value is the paper's configuration.
type TierConfig struct {
	// Headroom measures the headroom. Nil: one with the default config.
	Headroom *Headroom
	// Exploration is the probability with which the candidates that miss the
	// SLO stay instead, in (0, 1). Zero: 0.01.
	Exploration        float64
	DisableExploration bool
}

// NewTier returns the headroom tier filter (GIE, "SLO enforcement"), or an
// [endpick.ConfigError]. The candidates that are expected to meet the SLO stay, or
// with a small probability the others, so that the recovery of an endpoint is
// noticed. If no candidate meets the SLO, all stay. A candidate without a prediction
// always stays.
//
// A request without an SLO only avoids endpoints where it would break the TPOT
// target of a running request.
//
// The filter belongs to one router.
func NewTier(config TierConfig) (endpick.Filter, error) {
	chance, err := endpick.NewExploration("slo.TierConfig.Exploration", config.Exploration, config.DisableExploration)
	if err != nil {
		return nil, err
	}
	return &tier{headroom: config.Headroom.orDefault(), explore: chance}, nil
}

type tier struct {
	headroom *Headroom
	explore  endpick.Exploration
}

func (*tier) Name() string { return "slo-tier" }

func (t *tier) Observer() any { return &t.headroom.running }

var saltTier = endpick.Salt("slo/tier")

func (t *tier) Filter(req *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	m := t.headroom.measure(req, t.headroom.config.UpperBound)
	defer m.end()
	if m.asked == 0 && m.running == nil {
		return candidates
	}
	var f fit
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
