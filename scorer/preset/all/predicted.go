package all

import (
	"cmp"
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/slo"
)

// PredictedLatencyConfig configures PredictedLatency. The zero value is the paper's
// system with additions: its gate holds no request for longer than that saves; upper
// bounds of predictions are compared with an SLO, and the targets of running requests
// count too; a new endpoint gets its share gradually; and a request without an SLO
// considers the requests that are running.
type PredictedLatencyConfig struct {
	Index    prefix.IndexConfig
	Latency  predict.LatencyConfig
	Affinity prefix.AffinityConfig
	// Headroom is shared by admission, tiers and scorer, whose own Headroom
	// fields stay nil. Its UpperBound is true, unless Paper is set.
	Headroom slo.HeadroomConfig
	Warmup   slo.WarmupConfig
	Tier     slo.TierConfig
	BestFit  slo.BestFitConfig
	// Paper leaves the additions out, as the paper does: the gate holds a request for
	// Affinity.MaxPenalty, however little that saves; an SLO is compared with expected
	// latencies, so that best fit fills an endpoint until every other request misses
	// it; and a request counts neither those that run beside it nor their targets.
	Paper bool
}

// validate refuses settings that would be ignored; the stages validate themselves.
func (c *PredictedLatencyConfig) validate() error {
	const shared = "is set; the stages share the one that Headroom describes"
	const paper = "is set, and the paper does not have it"
	for _, f := range []struct {
		name   string
		bad    bool
		reason string
	}{
		{"Tier.Headroom", c.Tier.Headroom != nil, shared},
		{"BestFit.Headroom", c.BestFit.Headroom != nil, shared},
		{"Affinity.LimitToSaved", c.Paper && c.Affinity.LimitToSaved, paper},
		{"Headroom.UpperBound", c.Paper && c.Headroom.UpperBound, paper},
		{"Warmup", c.Paper && c.Warmup != (slo.WarmupConfig{}), paper},
		{"BestFit.PrefillRate", c.Paper && c.BestFit.PrefillRate != 0, paper},
	} {
		if f.bad {
			return &endpick.ConfigError{Field: "all.PredictedLatencyConfig." + f.name, Reason: f.reason}
		}
	}
	return nil
}

// prefillRate is 8,192 tokens in 954 ms; see [prefix.AffinityConfig].
const prefillRate = 8600

// PredictedLatency is the complete predicted-latency scheduling of the paper of
// that name: a prefix index, predictions of TTFT and TPOT by models that learn
// from the responses, a gate that prefers endpoints with the prefix, tiers and
// best fit for requests with an SLO, and the lowest latency for requests
// without. There are no weights to tune. It works from the first request on:
// until there is enough data to predict from, load and match decide.
//
// Its Predictor is a [predict.Latency], whose Health says how well it predicts.
// Nothing has to be closed: models are fitted in a goroutine that ends with the
// fit.
func PredictedLatency(c PredictedLatencyConfig) (endpick.Config, error) {
	if err := c.validate(); err != nil {
		return endpick.Config{}, err
	}
	if c.Paper {
		c.Headroom.DisableRunning = true
	} else {
		c.Headroom.UpperBound = true
		c.Affinity.LimitToSaved = !c.Affinity.DisableLoadGate
		c.BestFit.PrefillRate = cmp.Or(c.BestFit.PrefillRate, prefillRate)
	}
	held, err := prefix.NewIndex(c.Index)
	if err != nil {
		return endpick.Config{}, err
	}
	gate, err := prefix.NewAffinity(c.Affinity)
	if err != nil {
		return endpick.Config{}, err
	}
	headroom, err := slo.NewHeadroom(c.Headroom)
	if err != nil {
		return endpick.Config{}, err
	}
	c.Tier.Headroom, c.BestFit.Headroom = headroom, headroom
	warmup, err := slo.NewWarmup(c.Warmup)
	if err != nil {
		return endpick.Config{}, err
	}
	tier, err := slo.NewTier(c.Tier)
	if err != nil {
		return endpick.Config{}, err
	}
	fit, err := slo.NewBestFit(c.BestFit)
	if err != nil {
		return endpick.Config{}, err
	}
	latency, err := predict.NewLatency(c.Latency)
	if err != nil {
		return endpick.Config{}, err
	}
	filters := []endpick.Filter{gate, tier}
	if !c.Paper {
		filters = []endpick.Filter{warmup, gate, tier}
	}
	return endpick.Config{Policy: endpick.Policy{
		Name:      "predicted-latency",
		Matcher:   held,
		Predictor: latency,
		Admitters: []endpick.Admitter{slo.NewLatencyAdmitter(headroom)},
		Filters:   filters,
		Scorers:   one(fit),
	}}, nil
}
