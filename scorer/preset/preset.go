// Package preset has the default policy as an [endpick.Config] to which the caller adds
// endpoints, and whatever else should differ, before [endpick.New]:
//
//	config := preset.Default()
//	config.Endpoints = endpoints
//	router, err := endpick.New(config)
//
// Every call makes a Config with state of its own: a Config is for one router.
//
// Package preset/all has this policy and every other one by name. It is a package of its own
// so that a program with the default policy links nothing else.
package preset

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/slo"
	"github.com/endpick/endpick/slo/delay"
)

// Default is [MarginalDelay] with its defaults, for callers who don't want to choose a
// policy.
func Default() endpick.Config {
	c, err := MarginalDelay(MarginalDelayConfig{})
	if err != nil {
		panic(err) // the zero MarginalDelayConfig is valid
	}
	return c
}

// MarginalDelayConfig configures MarginalDelay. The zero value is the complete
// policy.
type MarginalDelayConfig struct {
	Index prefix.IndexConfig
	Delay delay.Config
	// Headroom is shared by admission and tiers; Tier.Headroom stays nil. Its
	// UpperBound is true, whatever is set.
	Headroom slo.HeadroomConfig
	Warmup   slo.WarmupConfig
	Tier     slo.TierConfig
}

// MarginalDelay sends each request where it causes the least delay in total: to
// itself, to the requests already there, and to those that come next. It learns
// from the responses how long things take; delay.Config has one dial. For a request
// with an SLO, it chooses among the servers that are expected to meet it.
//
// It works from the first request on: until there is a response to learn from,
// costs are in prompt tokens. Receipts show the parts of each candidate's cost. See
// docs/marginal-delay.md.
func MarginalDelay(c MarginalDelayConfig) (endpick.Config, error) {
	if c.Tier.Headroom != nil {
		return endpick.Config{}, check.Bad("preset.MarginalDelayConfig.Tier.Headroom", "is set; the stages share the one that Headroom describes")
	}
	index, err := prefix.NewIndex(c.Index)
	if err != nil {
		return endpick.Config{}, err
	}
	marginal, err := delay.New(c.Delay)
	if err != nil {
		return endpick.Config{}, err
	}
	c.Headroom.UpperBound = true
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
	return endpick.Config{Policy: endpick.Policy{
		Name:      "marginal-delay",
		Matcher:   index,
		Predictor: marginal,
		Admitters: []endpick.Admitter{slo.NewLatencyAdmitter(headroom)},
		Filters:   []endpick.Filter{warmup, tier},
		Scorers:   []endpick.Weighted{{Scorer: marginal, Weight: 1}},
	}}, nil
}
