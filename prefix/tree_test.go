package prefix_test

import (
	"slices"
	"testing"

	"github.com/endpick/endpick/prefix"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// branches are prompts that diverge from a long one after each of its blocks.
func (s *shelf) branches(long []uint64) (all [][]uint64) {
	for k := 1; k < len(long); k++ {
		all = append(all, append(slices.Clone(long[:k]), s.fresh(1)...))
	}
	return all
}

// Prompts that diverge from a long one at each of its blocks don't split it,
// whoever holds it.
func TestBranchesCutNothing(t *testing.T) {
	s := newShelf(t, 10, prefix.IndexConfig{})
	long := s.fresh(1000)
	for slot := range 10 {
		s.serve(slot, "", long...)
	}
	for i, b := range s.branches(long) {
		s.serve(i%3, "", b...)
	}
	assert.Equal(t, 1000, s.Stats().Runs, "the prompt and 999 blocks")
	for _, tokens := range s.match(long...) {
		assert.Equal(t, 16_000, tokens)
	}
}

// They take memory only where they were sent, and from who sent them.
func TestBranchesDisplaceNobody(t *testing.T) {
	const most = 1 << 20
	s := newShelf(t, 10, prefix.IndexConfig{MaxBytes: most})
	long := s.fresh(1000)
	for slot := range 10 {
		s.serve(slot, "", long...)
	}
	mine := s.serveAll(0, "small", 40, 50)
	for range 8 {
		for i, b := range s.branches(long) {
			s.serve(i%10, "attacker", b...)
		}
		require.LessOrEqual(t, s.Stats().Bytes, int64(most))
	}
	assert.Positive(t, s.Stats().Evicted)
	assert.Equal(t, 40, s.found(0, mine))
	for slot, tokens := range s.match(long...) {
		assert.Equal(t, 16_000, tokens, slot)
	}
}

// If the branches come first, the prompt consists of a run for each of them. It is matched
// all the same, and once nobody holds it, nothing of that is left.
func TestBranchesBeforeThePrompt(t *testing.T) {
	for _, order := range []string{"up", "down"} {
		t.Run(order, func(t *testing.T) {
			s := newShelf(t, 11, prefix.IndexConfig{BlocksPerEndpoint: 2000})
			long := s.fresh(1000)
			branches := s.branches(long)
			if order == "down" {
				slices.Reverse(branches)
			}
			for _, b := range branches {
				s.serve(10, "", b...)
			}
			for slot := range 11 {
				s.serve(slot, "", long...)
			}
			for _, tokens := range s.match(long...) {
				assert.Equal(t, 16_000, tokens)
			}
			for slot := range 11 {
				s.serve(slot, "", s.fresh(2000)...)
			}
			stats := s.Stats()
			assert.Equal(t, []int{11, 22_000, 22_000}, []int{stats.Runs, stats.Blocks, stats.Pairs})
			s.serve(0, "", long...)
			assert.Equal(t, 12, s.Stats().Runs)
		})
	}
}
