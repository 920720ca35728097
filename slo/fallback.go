package slo

import (
	"slices"

	"github.com/endpick/endpick"
)

// fallBack scores the candidates without a prediction by load and match: the
// mean of 1 − K, 1 − W/max W and the match share (GIE, "Fallback"). If others
// are predicted, this is scaled to stay below the median of their scores, so
// that a candidate never wins because nothing is known about it, unless the
// request explores.
func (s *bestFit) fallBack(req *endpick.Request, candidates []endpick.Candidate, dst []float64, predicted int, explore bool) {
	most := 0.0
	for i := range candidates {
		most = max(most, candidates[i].Waiting)
	}
	low, high := 0.0, 1.0
	switch {
	case predicted == 0:
	case explore:
		low = 0.75
		for i := range dst {
			if dst[i] != unscored {
				dst[i] /= 2
			}
		}
	default:
		high = s.median(dst) * (1 - 1e-6)
	}
	for i := range dst {
		if dst[i] == unscored {
			dst[i] = low + (high-low)*composite(req, &candidates[i], most)
		}
	}
}

func composite(req *endpick.Request, c *endpick.Candidate, mostWaiting float64) float64 {
	queue := 1.0
	if mostWaiting > 0 {
		queue = 1 - c.Waiting/mostWaiting
	}
	return (1 - c.KVUsage + queue + c.MatchShare(req)) / 3
}

var saltUnpredicted = endpick.Salt("slo/unpredicted")

// median returns the lower median of the scores that are set, of which there is at least one.
func (s *bestFit) median(scores []float64) float64 {
	work, _ := s.work.Get().(*[]float64)
	if work == nil {
		work = new([]float64)
	}
	set := (*work)[:0]
	for _, v := range scores {
		if v != unscored {
			set = append(set, v)
		}
	}
	slices.Sort(set)
	m := set[(len(set)-1)/2]
	*work = set
	s.work.Put(work)
	return m
}
