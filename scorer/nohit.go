package scorer

import (
	"slices"
	"sync"

	"github.com/endpick/endpick"
)

// NoHitLRU spreads cold requests, whose beginning no candidate holds. The
// candidate that has gone longest without one scores 1, the one that had the
// last scores 0, and the others 1 − rank/(n − 1); those that never had one
// share the first rank. For warm requests every candidate scores 0.5, which
// changes nothing. It is the scorer of that name in BLIS ("Scorer
// Composition"). It belongs to one router.
func NoHitLRU() endpick.Scorer { return &noHitLRU{} }

type noHitLRU struct {
	endpick.Exclusive
	uses uses
	work sync.Pool // *[]uint64
}

func (*noHitLRU) Name() string { return "no-hit-lru" }

func (s *noHitLRU) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	if !cold(candidates) {
		for i := range candidates {
			dst[i] = 0.5
		}
		return
	}
	order, _ := s.work.Get().(*[]uint64)
	if order == nil {
		order = new([]uint64)
	}
	sorted := (*order)[:0]
	s.uses.mu.RLock()
	for i := range candidates {
		sorted = append(sorted, s.uses.last(candidates[i].Ref))
	}
	s.uses.mu.RUnlock()
	for i, last := range sorted {
		dst[i] = float64(last) // exact: below 2^53
	}
	slices.Sort(sorted)
	for i := range candidates {
		rank, _ := slices.BinarySearch(sorted, uint64(dst[i]))
		dst[i] = 1 - float64(rank)/float64(max(len(candidates)-1, 1))
	}
	*order = sorted
	s.work.Put(order)
}

// cold reports whether no candidate holds the beginning of the prompt.
func cold(candidates []endpick.Candidate) bool {
	for i := range candidates {
		if candidates[i].PrefixTokens > 0 {
			return false
		}
	}
	return true
}

func (s *noHitLRU) Routed(e *endpick.Event) {
	if cold(e.Candidates) {
		s.uses.add(e.Candidate.Ref)
	}
}
