package bpe

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// naive looks for the best pair again after each merge, as BPE is defined.
func (m merges) naive(ids []uint32) []uint32 {
	ids = slices.Clone(ids)
	for {
		at := -1
		for i := range max(len(ids)-1, 0) {
			found, ok := m[[2]uint32{ids[i], ids[i+1]}]
			if ok && (at < 0 || found.rank < m[[2]uint32{ids[at], ids[at+1]}].rank) {
				at = i
			}
		}
		if at < 0 {
			return ids
		}
		ids = slices.Replace(ids, at, at+2, m[[2]uint32{ids[at], ids[at+1]}].result)
	}
}

func TestMergesAreAsDefined(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, next := merges{}, uint32(4)
		for rank := range rapid.IntRange(0, 30).Draw(t, "merges") {
			id := rapid.Uint32Range(0, next-1)
			pair := [2]uint32{id.Draw(t, "left"), id.Draw(t, "right")}
			if _, ok := m[pair]; !ok {
				m[pair] = merge{int32(rank), next}
				next++
			}
		}
		ids := rapid.SliceOfN(rapid.Uint32Range(0, 3), 0, 3*short).Draw(t, "ids")
		want := m.naive(ids)
		require.Equal(t, want, m.apply(slices.Clone(ids)))
		if len(ids) > 0 {
			require.Equal(t, want, m.applyLong(slices.Clone(ids)))
		}
	})
}
