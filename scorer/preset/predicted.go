package preset

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/slo"
)

// PredictedLatencyConfig configures PredictedLatency. The zero value is the paper's
// system with additions, each of which can be switched off: its gate holds no request
// for longer than that saves; upper bounds of predictions are compared with an SLO,
// and the targets of running requests count too (Headroom.DisableRunning); a new
// endpoint gets its share gradually; and a request without an SLO considers the
// requests that are running, and those that will need what it pushes out of a cache.
type PredictedLatencyConfig struct {
	Index   prefix.IndexConfig
	Latency predict.LatencyConfig
	// Learned is a predictor to continue with after a restart, from
	// [predict.Restore]. It is used instead of a new one made from Latency. Nil: a
	// new one.
	Learned  *predict.Latency
	Affinity prefix.AffinityConfig
	// Headroom is shared by admission, tiers and scorer, whose own Headroom
	// fields stay nil. Its Bound is slo.Upper unless DisableSpread is set.
	Headroom slo.HeadroomConfig
	Warmup   slo.WarmupConfig
	// DisableWarmup gives a new endpoint its full share at once.
	DisableWarmup bool
	Tier          slo.TierConfig
	BestFit       slo.BestFitConfig
	// DisableSpread compares the expected latency with an SLO, as the paper
	// does, and not the upper bound that nine requests in ten stay below. Best
	// fit fills an endpoint until the last target is only just met; a target
	// that is only just met in expectation is missed every other time.
	DisableSpread bool
	// DisableGate leaves out the gate that prefers endpoints with the prefix;
	// a match then only counts through the prediction.
	DisableGate bool
	// FixedGate lets the gate hold a request for MaxPenalty, as the paper does,
	// however little that saves. Otherwise Affinity.LimitToSaved is set, because
	// the gate affects the next turn of every conversation, even if its prompt is
	// computed in no time.
	FixedGate bool
	// DisableNeighbours ignores what a request without an SLO does to those
	// that are already on an endpoint, as the paper does; see
	// BestFit.PrefillRate, whose default here is that of the affinity gate.
	DisableNeighbours bool
	// DisableClaims ignores what a request without an SLO pushes out of a
	// cache although it is likely to be used again. DisableNeighbours implies
	// it.
	DisableClaims bool
}

// validate refuses settings that would be ignored; the stages validate themselves.
func (c *PredictedLatencyConfig) validate() error {
	for _, f := range []struct {
		name   string
		bad    bool
		reason string
	}{
		{"Affinity.LimitToSaved", c.FixedGate && c.Affinity.LimitToSaved, "is set and disabled"},
		{"Tier.Headroom", c.Tier.Headroom != nil, "is set; the stages share the one that Headroom describes"},
		{"BestFit.Headroom", c.BestFit.Headroom != nil, "is set; the stages share the one that Headroom describes"},
		{"Latency", c.Learned != nil && c.Latency != (predict.LatencyConfig{}), "is set beside Learned, which has its own"},
		{"Warmup", c.DisableWarmup && c.Warmup != (slo.WarmupConfig{}), "is set and disabled"},
		{"Headroom.Bound", c.DisableSpread && c.Headroom.Bound != slo.Expected, "is set and disabled"},
		{"BestFit.Displaced", c.BestFit.Displaced != nil && (c.DisableClaims || c.DisableNeighbours), "is set and disabled"},
		{"BestFit.PrefillRate", c.DisableNeighbours && c.BestFit.PrefillRate != 0, "is set and disabled"},
	} {
		if f.bad {
			return &endpick.ConfigError{Field: "preset.PredictedLatencyConfig." + f.name, Reason: f.reason}
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
// fit. To continue with what was learned before a restart, set Learned.
func PredictedLatency(c PredictedLatencyConfig) (endpick.Config, error) {
	if err := c.validate(); err != nil {
		return endpick.Config{}, err
	}
	held, err := prefix.NewIndex(c.Index)
	if err != nil {
		return endpick.Config{}, err
	}
	if !c.FixedGate && !c.Affinity.DisableLoadGate {
		c.Affinity.LimitToSaved = true
	}
	gate, err := prefix.NewAffinity(c.Affinity)
	if err != nil {
		return endpick.Config{}, err
	}
	if !c.DisableSpread && c.Headroom.Bound == slo.Expected {
		c.Headroom.Bound = slo.Upper
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
	if c.BestFit.PrefillRate == 0 && !c.DisableNeighbours {
		c.BestFit.PrefillRate = prefillRate
	}
	if c.BestFit.Displaced == nil && !c.DisableNeighbours && !c.DisableClaims {
		c.BestFit.Displaced = held.Displaced
	}
	fit, err := slo.NewBestFit(c.BestFit)
	if err != nil {
		return endpick.Config{}, err
	}
	latency := c.Learned
	if latency == nil {
		if latency, err = predict.NewLatency(c.Latency); err != nil {
			return endpick.Config{}, err
		}
	}
	var filters []endpick.Filter
	if !c.DisableWarmup {
		filters = append(filters, warmup)
	}
	if !c.DisableGate {
		filters = append(filters, gate)
	}
	filters = append(filters, tier)
	return config("predicted-latency", endpick.Policy{
		Matcher:   held,
		Predictor: latency,
		Admitters: []endpick.Admitter{slo.NewLatencyAdmitter(headroom)},
		Filters:   filters,
		Scorers:   one(fit),
	}), nil
}
