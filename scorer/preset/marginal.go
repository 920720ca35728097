package preset

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/slo"
	"github.com/endpick/endpick/slo/delay"
)

// MarginalDelayConfig configures MarginalDelay. The zero value is the complete
// policy.
type MarginalDelayConfig struct {
	Index prefix.IndexConfig
	Delay delay.Config
	// Headroom is shared by admission and tiers; Tier.Headroom stays nil. Its Bound
	// is slo.Upper, whatever is set.
	Headroom slo.HeadroomConfig
	Warmup   slo.WarmupConfig
	Tier     slo.TierConfig
}

// MarginalDelay sends each request where it causes the least delay in total: to
// itself, to the requests already there, and to those that come next. It learns
// from the responses how long things take; there is nothing to tune. For a request
// with an SLO, it chooses among the servers that are expected to meet it.
//
// It works from the first request on: until there is a response to learn from,
// costs are in prompt tokens. Receipts show the parts of each candidate's cost. See
// docs/marginal-delay.md.
func MarginalDelay(c MarginalDelayConfig) (endpick.Config, error) {
	if c.Tier.Headroom != nil {
		return endpick.Config{}, &endpick.ConfigError{Field: "preset.MarginalDelayConfig.Tier.Headroom", Reason: "is set; the stages share the one that Headroom describes"}
	}
	held, err := prefix.NewIndex(c.Index)
	if err != nil {
		return endpick.Config{}, err
	}
	marginal, err := delay.New(c.Delay)
	if err != nil {
		return endpick.Config{}, err
	}
	c.Headroom.Bound = slo.Upper
	headroom, err := slo.NewHeadroom(c.Headroom)
	if err != nil {
		return endpick.Config{}, err
	}
	c.Tier.Headroom = headroom
	tier, err := slo.NewTier(c.Tier)
	if err != nil {
		return endpick.Config{}, err
	}
	warmup, err := slo.NewWarmup(c.Warmup)
	if err != nil {
		return endpick.Config{}, err
	}
	return config("marginal-delay", endpick.Policy{
		Matcher:   held,
		Predictor: marginal,
		Admitters: []endpick.Admitter{slo.NewLatencyAdmitter(headroom)},
		Filters:   []endpick.Filter{warmup, tier},
		Scorers:   one(marginal),
	}), nil
}
