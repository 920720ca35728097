package main

import (
	"math"
	"slices"
	"time"

	"github.com/endpick/endpick"
)

// result is what was measured under one policy. What nothing was measured for
// is null.
type result struct {
	Policy         string       `json:"policy"`
	Requests       int          `json:"requests"`
	Failed         int          `json:"failed"`
	TTFT           *percentiles `json:"ttft_ms"`
	TPOT           *percentiles `json:"tpot_ms"`
	E2E            *percentiles `json:"e2e_ms"`
	PrefixHitRatio *float64     `json:"prefix_hit_ratio"` // cached prompt tokens of all prompt tokens
	// SLOMet is the share of the requests that were served within every target
	// asked for; absent if none was.
	SLOMet *float64 `json:"slo_met,omitempty"`

	firstErr error
}

// percentiles are in milliseconds.
type percentiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
}

func summarise(policy string, samples []sample, slo endpick.SLO) result {
	r := result{Policy: policy, Requests: len(samples)}
	var ttft, tpot, e2e []float64
	var prompt, cached float64
	met := 0
	for _, s := range samples {
		if s.err != nil {
			r.Failed++
			if r.firstErr == nil {
				r.firstErr = s.err
			}
			continue
		}
		ttft = append(ttft, millis(s.ttft))
		e2e = append(e2e, millis(s.e2e))
		if s.outputTokens > 1 {
			tpot = append(tpot, millis(s.tpot()))
		}
		if s.meets(slo) {
			met++
		}
		prompt += float64(s.promptTokens)
		cached += float64(s.cachedTokens)
	}
	r.TTFT, r.TPOT, r.E2E = percentilesOf(ttft), percentilesOf(tpot), percentilesOf(e2e)
	if prompt > 0 {
		ratio := round(cached / prompt)
		r.PrefixHitRatio = &ratio
	}
	if slo.Asked() && len(samples) > 0 {
		share := round(float64(met) / float64(len(samples)))
		r.SLOMet = &share
	}
	return r
}

// tpot is the mean time per output token after the first; zero for one token.
func (s *sample) tpot() time.Duration { return s.sinceFirst / time.Duration(max(s.outputTokens-1, 1)) }

// meets reports whether a request that was served kept the targets.
func (s *sample) meets(slo endpick.SLO) bool {
	return (slo.TTFT <= 0 || s.ttft <= slo.TTFT) && (slo.TPOT <= 0 || s.tpot() <= slo.TPOT)
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// percentilesOf sorts values. Nil for none.
func percentilesOf(values []float64) *percentiles {
	if len(values) == 0 {
		return nil
	}
	slices.Sort(values)
	return &percentiles{P50: rank(values, 50), P95: rank(values, 95), P99: rank(values, 99)}
}

// rank is the smallest of the sorted values that is not below percent of them.
func rank(sorted []float64, percent float64) float64 {
	n := int(math.Ceil(percent / 100 * float64(len(sorted))))
	return round(sorted[max(n, 1)-1])
}

// round leaves three decimals.
func round(v float64) float64 { return math.Round(v*1000) / 1000 }
