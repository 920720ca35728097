package slo

import (
	"time"

	"github.com/endpick/endpick"
)

// latency is a prediction in nanoseconds without what can't be: a negative
// latency is none.
type latency struct {
	has             endpick.Targets
	ttft, tpot, e2e float64
}

func clean(p *endpick.Prediction, bound Bound) latency {
	var l latency
	take := func(t endpick.Targets, expected, upper time.Duration) float64 {
		if p.Has&t == 0 || expected < 0 {
			return 0
		}
		l.has |= t
		if bound == Upper {
			expected = max(expected, upper)
		}
		return float64(expected)
	}
	l.ttft = take(endpick.TTFT, p.TTFT, p.TTFTUpper)
	l.tpot = take(endpick.TPOT, p.TPOT, p.TPOTUpper)
	l.e2e = take(endpick.E2E, p.E2E, p.E2EUpper)
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
// by the same one, so that a candidate with fewer latencies predicted does not
// look faster.
type basis endpick.Targets

const (
	byParts = basis(endpick.TTFT | endpick.TPOT)
	byWhole = basis(endpick.E2E)
	byFirst = basis(endpick.TTFT)
)

// commonBasis returns the best basis that any of the candidates has, or 0. A
// streamed response is compared by its parts, because they are what the client
// sees; any other by the whole.
func commonBasis(req *endpick.Request, candidates []endpick.Candidate) basis {
	order := [...]basis{byParts, byWhole, byFirst}
	if !req.Stream {
		order = [...]basis{byWhole, byParts, byFirst}
	}
	best := len(order)
	for i := range candidates {
		l := clean(&candidates[i].Prediction, Expected)
		for j := 0; j < best; j++ {
			if basis(l.has)&order[j] == order[j] {
				best = j
			}
		}
		if best == 0 {
			break
		}
	}
	if best == len(order) {
		return 0
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
