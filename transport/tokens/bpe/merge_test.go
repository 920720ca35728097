package bpe

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// naive searches for the best pair again after each merge, as BPE is defined.
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

// The alphabet is small so that merges overlap, come in runs, and make the same token
// in several ways.
func TestMergesAreAsDefined(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		texts, ids := []string{"a", "b", "c"}[:1+r.IntN(3)], map[string]uint32{}
		letters := len(texts)
		for i, s := range texts {
			ids[s] = uint32(i)
		}
		m := merges{}
		for rank := range r.IntN(40) {
			left, right := uint32(r.IntN(len(texts))), uint32(r.IntN(len(texts)))
			text := texts[left] + texts[right]
			if _, ok := ids[text]; !ok {
				ids[text] = uint32(len(texts))
				texts = append(texts, text)
			}
			m[[2]uint32{left, right}] = merge{int32(rank), ids[text]}
		}
		for range 12 {
			n := r.IntN(3 * short)
			piece := make([]uint32, n)
			for i := range piece {
				piece[i] = uint32(r.IntN(letters))
			}
			want := m.naive(piece)
			require.Equal(t, want, m.apply(slices.Clone(piece)), "%d of %v by %v", n, piece, m)
			if n > 0 {
				require.Equal(t, want, m.applyLong(slices.Clone(piece)), "%d of %v by %v", n, piece, m)
			}
		}
	})
}
