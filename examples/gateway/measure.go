package main

import (
	"math"
	"slices"
	"time"
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

	firstErr error
}

// percentiles are in milliseconds.
type percentiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
}

func summarise(policy string, samples []sample) result {
	r := result{Policy: policy, Requests: len(samples)}
	var ttft, tpot, e2e []float64
	var prompt, cached float64
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
			tpot = append(tpot, millis(s.sinceFirst)/float64(s.outputTokens-1))
		}
		prompt += float64(s.promptTokens)
		cached += float64(s.cachedTokens)
	}
	r.TTFT, r.TPOT, r.E2E = percentilesOf(ttft), percentilesOf(tpot), percentilesOf(e2e)
	if prompt > 0 {
		ratio := round(cached / prompt)
		r.PrefixHitRatio = &ratio
	}
	return r
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
