package prefix

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSlabClasses(t *testing.T) {
	last, lastSize := 0, 0
	for n := 1; n < 100_000; n++ {
		number, size := class(n)
		require.GreaterOrEqual(t, size, n)
		require.LessOrEqual(t, float64(size), max(4, 1.25*float64(n)), "at most a quarter too much")
		if number == last {
			require.Equal(t, lastSize, size)
			continue
		}
		require.Equal(t, last+1, number)
		require.Equal(t, n-1, lastSize, "the class before ends here")
		last, lastSize = number, size
	}
	number, _ := class(1<<31 - 1)
	require.Less(t, number, classes)
}

// Slices that are lent at the same time never overlap, and none is lost.
func TestSlab(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s slab[uint64]
		var lent []vec[uint64]
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				x := s.take(rapid.IntRange(1, 100).Draw(t, "n"))
				for i := range x.all() {
					x.all()[i] = uint64(len(lent))
				}
				lent = append(lent, x)
			},
			"grow": func(t *rapid.T) {
				if len(lent) == 0 {
					return
				}
				i := rapid.IntRange(0, len(lent)-1).Draw(t, "i")
				old := lent[i].len()
				v := lent[i].all()[0]
				lent[i] = s.grow(lent[i], old+rapid.IntRange(0, 50).Draw(t, "more"))
				for j := old; j < lent[i].len(); j++ {
					lent[i].all()[j] = v
				}
			},
			"give": func(*rapid.T) {
				if len(lent) > 0 {
					s.give(lent[len(lent)-1])
					lent = lent[:len(lent)-1]
				}
			},
			"release": func(t *rapid.T) {
				before := s.idle
				n := rapid.Int64Range(0, 2000).Draw(t, "bytes")
				s.release(n)
				require.GreaterOrEqual(t, 8*(before-s.idle), min(n, 8*before))
			},
			"": func(t *rapid.T) {
				total := int64(0)
				for _, x := range lent {
					total += int64(x.cap)
					for _, v := range x.all() {
						require.Equal(t, x.all()[0], v)
					}
				}
				require.Equal(t, total, s.lent)
				require.Equal(t, idle(&s), s.idle)
			},
		})
	})
}
