package slo

import (
	"time"

	"github.com/endpick/endpick"
)

// latency is a prediction in nanoseconds without impossible values: a negative
// latency counts as none. Only those in has are meaningful.
type latency struct {
	has             endpick.Latencies
	ttft, tpot, e2e float64
}

// clean takes the expected latencies, or with upper their upper bounds.
func clean(p *endpick.Prediction, upper bool) latency {
	l := latency{has: p.Has, ttft: float64(p.TTFT), tpot: float64(p.TPOT), e2e: float64(p.E2E)}
	for i, v := range [...]time.Duration{p.TTFT, p.TPOT, p.E2E} {
		if v < 0 {
			l.has &^= endpick.TTFT << i
		}
	}
	if upper {
		l.ttft = max(l.ttft, float64(p.TTFTUpper))
		l.tpot = max(l.tpot, float64(p.TPOTUpper))
		l.e2e = max(l.e2e, float64(p.E2EUpper))
	}
	return l
}

// whole is the latency of the whole response: predicted as such, or
// TTFT + E[output tokens]·TPOT.
func (l *latency) whole(outputTokens float64) (float64, bool) {
	switch {
	case l.has&endpick.E2E != 0:
		return l.e2e, true
	case l.has&(endpick.TTFT|endpick.TPOT) == endpick.TTFT|endpick.TPOT:
		return l.ttft + outputTokens*l.tpot, true
	}
	return 0, false
}

// A basis is a set of predicted latencies by which candidates are compared: all
// by the same one, so that a candidate with fewer predictions does not look
// faster.
type basis endpick.Latencies

const (
	byParts = basis(endpick.TTFT | endpick.TPOT)
	byWhole = basis(endpick.E2E)
	byFirst = basis(endpick.TTFT)
)

// commonBasis returns the best basis that any candidate has, or 0. A streamed
// response is compared by its parts, because they are what the client sees; any
// other by the whole.
func commonBasis(req *endpick.Request, candidates []endpick.Candidate) basis {
	order := [...]basis{byParts, byWhole, byFirst, 0}
	if !req.Stream {
		order = [...]basis{byWhole, byParts, byFirst, 0}
	}
	best := len(order) - 1
	for i := range candidates {
		l := clean(&candidates[i].Prediction, false)
		for j := 0; j < best; j++ {
			if basis(l.has)&order[j] == order[j] {
				best = j
			}
		}
		if best == 0 {
			break
		}
	}
	return order[best]
}

// by returns the latency on the basis, at least one nanosecond; false if it is
// not predicted.
func (l *latency) by(b basis, outputTokens float64) (float64, bool) {
	if b == 0 || basis(l.has)&b != b {
		return 0, false
	}
	switch b {
	case byParts:
		return max(l.ttft+outputTokens*l.tpot, 1), true
	case byWhole:
		return max(l.e2e, 1), true
	default:
		return max(l.ttft, 1), true
	}
}
