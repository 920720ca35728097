package preset

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/predict/shortlist"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/slo"
)

// PredictedLatencyConfig says how [PredictedLatency] is made. The zero value is
// the paper's system with additions, each of which can be left out: its gate
// holds no request for longer than that saves, upper bounds of predictions are held
// against an SLO, and so are the targets of the requests that are running
// (Headroom.DisableRunning), a new endpoint gets its share by and by, a large fleet is
// not predicted whole, and without an SLO it considers the requests that are running,
// and those that will come back for what they have in a cache.
type PredictedLatencyConfig struct {
	Index   prefix.IndexConfig
	Latency predict.LatencyConfig
	// Learned is a predictor to go on with, as [predict.Restore] returns it after a
	// restart, in place of a new one made of Latency. Nil: a new one.
	Learned  *predict.Latency
	Affinity prefix.AffinityConfig
	// Headroom is shared by admission, tiers and scorer, whose own Headroom
	// fields stay nil. Its Bound is slo.Upper unless DisableSpread is set.
	Headroom slo.HeadroomConfig
	Warmup   slo.WarmupConfig
	// DisableWarmup lets a new endpoint have all that it is predicted to be good for.
	DisableWarmup bool
	Tier          slo.TierConfig
	BestFit       slo.BestFitConfig
	// Shortlist says how many endpoints of a large fleet are predicted. Its other
	// fields follow from the rest and stay zero.
	Shortlist shortlist.Config
	// DisableShortlist predicts all of them.
	DisableShortlist bool
	// DisableSpread holds the expected latency against an SLO, as the paper
	// does, and not the bound that nine requests in ten keep. Best fit fills an
	// endpoint until the last target is only just kept; one that is only just
	// kept in expectation is missed every other time.
	DisableSpread bool
	// DisableGate leaves out the gate that keeps to endpoints with the prefix:
	// the match counts by what it does to the prediction alone.
	DisableGate bool
	// FixedGate lets the gate hold a request for MaxPenalty, as the paper does,
	// however little that saves. Otherwise it is Affinity.LimitToSaved: nearly
	// all of a next turn is known to be held, so that the gate has a say in most
	// requests, and also in those whose prompts are computed in no time.
	FixedGate bool
	// DisableNeighbours leaves out what a request without an SLO does to
	// those that are on an endpoint already, as the paper does; see
	// BestFit.PrefillRate, whose default here is that of the affinity gate.
	DisableNeighbours bool
	// DisableClaims leaves out what a request without an SLO pushes out of a
	// cache that is likely to be asked for again. It goes with the neighbours.
	DisableClaims bool
}

// validate refuses what would be ignored; the parts check themselves.
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
		{"Shortlist", c.Shortlist != (shortlist.Config{Size: c.Shortlist.Size}), "has more than a Size; the rest follows from the other parts"},
		{"Shortlist.Size", c.DisableShortlist && c.Shortlist.Size != 0, "is set and disabled"},
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

// PredictedLatency is the whole of predicted-latency scheduling, as in the
// paper of that name: what each endpoint holds of the prompt, TTFT and TPOT
// predicted for each of them by models that learn from the responses, a gate
// that keeps to endpoints with the prefix, tiers and best fit where the request
// has an SLO, and the lowest latency where it has none. There are no weights to
// tune. It works from the first request on: until there is enough to predict
// from, load and match decide.
//
// Its Predictor is a [predict.Latency], whose Health says how well it predicts.
// Nothing has to be closed: models are fitted in a goroutine that ends with the
// fit. To go on with what was learned before a restart, set Learned.
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
	var before []endpick.Filter
	if !c.DisableWarmup {
		before = append(before, warmup)
	}
	if !c.DisableShortlist {
		c.Shortlist.Latency, c.Shortlist.Threshold = latency, c.Affinity.Threshold
		c.Shortlist.PrefillRate, c.Shortlist.OutputTokens = c.BestFit.PrefillRate, c.Headroom.OutputTokens
		short, err := shortlist.New(c.Shortlist)
		if err != nil {
			return endpick.Config{}, err
		}
		before = append(before, short)
	}
	filters := []endpick.Filter{gate, tier}
	if c.DisableGate {
		filters = []endpick.Filter{tier}
	}
	return config("predicted-latency", endpick.Policy{
		Matcher:   held,
		Shortlist: before,
		Predictor: latency,
		Admitters: []endpick.Admitter{slo.NewLatencyAdmitter(headroom)},
		Filters:   filters,
		Scorers:   one(fit),
	}), nil
}
