package traffic

import (
	"math"
	"slices"
	"time"

	"github.com/endpick/endpick"
)

// Result is what was measured under one policy. Values without a measurement
// are null.
type Result struct {
	Policy         string       `json:"policy"`
	Requests       int          `json:"requests"`
	Failed         int          `json:"failed"`
	TTFT           *Percentiles `json:"ttft_ms"`
	TPOT           *Percentiles `json:"tpot_ms"`
	E2E            *Percentiles `json:"e2e_ms"`
	PrefixHitRatio *float64     `json:"prefix_hit_ratio"` // cached prompt tokens divided by all prompt tokens
	// LaterHitRatio is that of the turns after the first of each conversation.
	LaterHitRatio *float64 `json:"prefix_hit_ratio_later"`
	// SLOMet is the share of the requests that were served within every target;
	// absent without targets.
	SLOMet *float64 `json:"slo_met,omitempty"`

	FirstErr error `json:"-"`
}

// Percentiles are in milliseconds.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
}

// Summarise summarises the measurements under a policy, with these targets.
func Summarise(policy string, samples []Sample, slo endpick.SLO) Result {
	r := Result{Policy: policy, Requests: len(samples)}
	var ttft, tpot, e2e []float64
	var all, later tally
	met := 0
	for _, s := range samples {
		if s.Err != nil {
			r.Failed++
			if r.FirstErr == nil {
				r.FirstErr = s.Err
			}
			continue
		}
		ttft = append(ttft, Millis(s.TTFT))
		e2e = append(e2e, Millis(s.E2E))
		if s.OutputTokens > 1 {
			tpot = append(tpot, Millis(s.TPOT()))
		}
		if s.meets(slo) {
			met++
		}
		all.add(s.CachedTokens, s.PromptTokens)
		if s.Turn > 0 {
			later.add(s.CachedTokens, s.PromptTokens)
		}
	}
	r.TTFT, r.TPOT, r.E2E = percentilesOf(ttft), percentilesOf(tpot), percentilesOf(e2e)
	r.PrefixHitRatio, r.LaterHitRatio = all.ratio(), later.ratio()
	if slo.Asked() {
		r.SLOMet = tally{met, len(samples)}.ratio()
	}
	return r
}

// tally is a part of a whole.
type tally struct{ part, whole int }

func (s *tally) add(part, whole int) {
	s.part += part
	s.whole += whole
}

// ratio is part/whole; nil for an empty whole.
func (s tally) ratio() *float64 {
	if s.whole == 0 {
		return nil
	}
	v := round(float64(s.part) / float64(s.whole))
	return &v
}

// TPOT is the mean time per output token after the first; zero for one token.
func (s *Sample) TPOT() time.Duration { return s.SinceFirst / time.Duration(max(s.OutputTokens-1, 1)) }

// meets reports whether a successful request met the targets.
func (s *Sample) meets(slo endpick.SLO) bool {
	return (slo.TTFT <= 0 || s.TTFT <= slo.TTFT) && (slo.TPOT <= 0 || s.TPOT() <= slo.TPOT)
}

// Millis is a duration in milliseconds.
func Millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// percentilesOf sorts values. Nil for none.
func percentilesOf(values []float64) *Percentiles {
	if len(values) == 0 {
		return nil
	}
	slices.Sort(values)
	return &Percentiles{P50: rank(values, 50), P95: rank(values, 95), P99: rank(values, 99)}
}

// rank is the smallest of the sorted values that is not below percent of them.
func rank(sorted []float64, percent float64) float64 {
	n := int(math.Ceil(percent / 100 * float64(len(sorted))))
	return round(sorted[max(n, 1)-1])
}

// round rounds to three decimals.
func round(v float64) float64 { return math.Round(v*1000) / 1000 }
