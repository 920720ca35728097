package shortlist

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/endpick/endpick"
)

// The result is the beginning of the sorted list; among equals the ones that MaxScore
// would pick come first.
func TestLowestIsItsTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		costs := rapid.SliceOfN(rapid.SampledFrom([]float64{0, 1, 2, 3, 4, 1e9}), 1, 60).Draw(t, "costs")
		most := rapid.IntRange(1, 20).Draw(t, "most")
		req := endpick.Request{}.At(time.Time{}, rapid.Uint64().Draw(t, "seed"), 1)
		candidates := make([]endpick.Candidate, len(costs))
		for i := range candidates {
			candidates[i].IDHash = uint64(i) * 7919
		}
		var l lowest
		for range 2 { // it can be reused
			l.begin(most)
			for i, cost := range costs {
				l.offer(&req, candidates, &item{index: int32(i)}, cost)
			}
		}
		want := make([]int32, len(costs))
		for i := range want {
			want[i] = int32(i)
		}
		slices.SortFunc(want, func(a, b int32) int {
			return cmp.Or(cmp.Compare(costs[a], costs[b]), cmp.Compare(req.ChanceOf(tie, &candidates[b]), req.ChanceOf(tie, &candidates[a])))
		})
		want = want[:min(most, len(want))]
		var got []int32
		for _, it := range l.items {
			got = append(got, it.index)
		}
		require.ElementsMatch(t, want, got)
	})
}

// The salt is the picker's: of equal candidates, the picker takes the one that the
// list has kept.
func TestTiesAreThoseOfThePicker(t *testing.T) {
	candidates := make([]endpick.Candidate, 100)
	for i := range candidates {
		candidates[i].IDHash = endpick.Salt(string(rune('a' + i)))
	}
	for n := range uint64(50) {
		req := endpick.Request{}.At(time.Time{}, 1, n)
		var l lowest
		l.begin(1)
		for i := range candidates {
			l.offer(&req, candidates, &item{index: int32(i)}, 1)
		}
		require.Equal(t, endpick.MaxScore{}.Pick(&req, candidates, make([]float64, len(candidates))), int(l.items[0].index))
	}
}
