package prefix

import (
	"cmp"
	"math"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
)

// AffinityConfig configures the gate of [NewAffinity]. The zero value is valid; its defaults
// are those of the predicted-latency scheduling paper.
type AffinityConfig struct {
	// Threshold, τ, is the share of the prompt in (0, 1] that an endpoint must
	// hold to be kept. Zero: 0.80.
	Threshold float64
	// Exploration, ε, is the probability in (0, 1) that a request is not
	// restricted to the endpoints that hold its prefix. Zero: 0.01.
	Exploration        float64
	DisableExploration bool
	// MaxPenalty is how much longer the TTFT of the best endpoint with the
	// prefix may be than that of the best endpoint. Zero: 5 s.
	MaxPenalty      time.Duration
	DisableLoadGate bool
	// LimitToSaved caps the penalty at what keeping to the prefix saves, if that
	// is less than MaxPenalty: the time, at PrefillRate, for the tokens that this
	// endpoint holds and the best of all does not. Computing them again would
	// delay others by that much, so the request may be delayed by as much, and no
	// more.
	LimitToSaved bool
	// PrefillRate, in tokens per second, turns the tokens in flight into a
	// TTFT for endpoints without a prediction. Zero: 8,600, which is 8,192
	// tokens in 954 ms, Llama-2-70B on four H100 as measured for Splitwise
	// (ISCA 2024, perf_model.csv of splitwise-sim).
	PrefillRate float64
}

func (c *AffinityConfig) validate() error {
	switch {
	case !(c.Threshold >= 0 && c.Threshold <= 1):
		return check.Bad("prefix.AffinityConfig.Threshold", "is not in [0, 1]")
	case c.DisableLoadGate && c.MaxPenalty != 0:
		return check.Bad("prefix.AffinityConfig.MaxPenalty", "is set and disabled")
	case c.DisableLoadGate && c.LimitToSaved:
		return check.Bad("prefix.AffinityConfig.LimitToSaved", "is set and disabled")
	case !(c.PrefillRate >= 0) || math.IsInf(c.PrefillRate, 1):
		return check.Bad("prefix.AffinityConfig.PrefillRate", "is not a finite rate")
	}
	c.Threshold = cmp.Or(c.Threshold, 0.80)
	c.PrefillRate = cmp.Or(c.PrefillRate, 8600)
	return check.Default("prefix.AffinityConfig.MaxPenalty", &c.MaxPenalty, 5*time.Second)
}

// affinity is the gate. It is safe for concurrent use.
type affinity struct {
	config  AffinityConfig
	explore endpick.Exploration

	exploited, explored, overloaded, cold atomic.Uint64
}

// AffinityStats counts what a gate has decided; the sum is the number of requests.
type AffinityStats struct {
	Exploited  uint64 // held to the endpoints with the prefix
	Explored   uint64 // not held to them, by chance
	Overloaded uint64 // not held to them: they are too busy
	Cold       uint64 // no endpoint holds enough of the prompt
}

var affinitySalt = endpick.Salt("prefix.Affinity")

// NewAffinity returns the epsilon-greedy gate of predicted-latency scheduling: a filter
// that keeps only the endpoints that hold most of the prompt, if there are any.
// It lets all pass if it explores, or if the holders are so much busier than
// the others that computing the prompt again is faster.
//
// The TTFT of a candidate is its prediction or, without one, the time to
// prefill what is in flight there and what this request would add: (Q + F) /
// PrefillRate.
//
// The filter also has a method Stats() [AffinityStats]. It is safe for concurrent use. The
// error is an [endpick.ConfigError].
func NewAffinity(config AffinityConfig) (endpick.Filter, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	chance, err := endpick.NewExploration("prefix.AffinityConfig.Exploration", config.Exploration, config.DisableExploration)
	if err != nil {
		return nil, err
	}
	return &affinity{config: config, explore: chance}, nil
}

// Name is what receipts show.
func (a *affinity) Name() string { return "prefix-affinity-gate" }

// Filter implements [endpick.Filter].
func (a *affinity) Filter(req *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	sticky := 0
	bestSticky, best := quickest{ttft: math.Inf(1)}, quickest{ttft: math.Inf(1)}
	for i := range candidates {
		c := &candidates[i]
		ttft := a.ttft(req, c)
		best.add(ttft, c)
		if a.sticky(req, c) {
			sticky++
			bestSticky.add(ttft, c)
		}
	}
	switch {
	case sticky == 0:
		a.cold.Add(1)
		return candidates
	case a.explore.Hits(req, affinitySalt):
		a.explored.Add(1)
		return candidates
	case !a.config.DisableLoadGate && bestSticky.ttft-best.ttft > a.tolerated(&bestSticky, &best):
		a.overloaded.Add(1)
		return candidates
	}
	a.exploited.Add(1)
	return endpick.Keep(candidates, func(c *endpick.Candidate) bool { return a.sticky(req, c) })
}

// quickest is the candidate with the lowest TTFT, and the longest match of the
// candidates with that TTFT.
type quickest struct {
	ttft float64 // seconds
	held int
}

func (q *quickest) add(ttft float64, c *endpick.Candidate) {
	if ttft < q.ttft || ttft == q.ttft && c.PrefixTokens > q.held {
		q.ttft, q.held = ttft, c.PrefixTokens
	}
}

// tolerated is how much longer, in seconds, the TTFT of the best endpoint with the
// prefix may be.
func (a *affinity) tolerated(sticky, best *quickest) float64 {
	most := a.config.MaxPenalty.Seconds()
	if a.config.LimitToSaved {
		most = min(most, float64(max(sticky.held-best.held, 0))/a.config.PrefillRate)
	}
	return most
}

func (a *affinity) sticky(req *endpick.Request, c *endpick.Candidate) bool {
	return c.MatchShare(req) >= a.config.Threshold
}

// ttft is the expected time to first token in seconds.
func (a *affinity) ttft(req *endpick.Request, c *endpick.Candidate) float64 {
	if c.Prediction.Has&endpick.TTFT != 0 {
		return c.Prediction.TTFT.Seconds()
	}
	return float64(c.InFlight.PrefillTokens+c.NewTokens(req)) / a.config.PrefillRate
}

// Stats returns the counts so far.
func (a *affinity) Stats() AffinityStats {
	return AffinityStats{
		Exploited:  a.exploited.Load(),
		Explored:   a.explored.Load(),
		Overloaded: a.overloaded.Load(),
		Cold:       a.cold.Load(),
	}
}
