package prefix

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSizesOfRuns(t *testing.T) {
	last, lastSize := 0, 0
	for n := 1; n < 100_000; n++ {
		number, size := sizeOf(n)
		require.GreaterOrEqual(t, size, n)
		require.LessOrEqual(t, float64(size), max(4, 1.25*float64(n)), "at most a quarter too much")
		if number == last {
			require.Equal(t, lastSize, size)
			continue
		}
		require.Equal(t, last+1, number)
		require.Equal(t, n-1, lastSize, "the size before ends here")
		last, lastSize = number, size
	}
	number, _ := sizeOf(1<<31 - 1)
	require.Less(t, number, len(runs{}.spare))
}

// Slices lent at the same time never overlap, none is lost, and none is much too large.
func TestRuns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r runs
		var lent [][]uint64
		fill := func(run []uint64, from int) {
			for i := range run[from:] {
				run[from+i] = uint64(len(lent))<<32 + uint64(from+i)
			}
		}
		check := func() {
			total, idle := 0, 0
			seen := map[*uint64]bool{}
			for _, run := range lent {
				total += cap(run)
				require.False(t, seen[&run[0]], "lent twice")
				seen[&run[0]] = true
				for i, v := range run {
					require.Equal(t, run[0]+uint64(i), v)
				}
			}
			for number, spare := range r.spare {
				for _, run := range spare {
					n, size := sizeOf(cap(run))
					require.Equal(t, []int{number, cap(run)}, []int{n, size})
					require.False(t, seen[&run[:1][0]], "spare, and lent or spare twice")
					seen[&run[:1][0]] = true
					idle += size
				}
			}
			require.Equal(t, []int64{int64(total), int64(idle)}, []int64{r.lent, r.idle})
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				run := r.resize(nil, rapid.IntRange(1, 100).Draw(t, "n"))
				fill(run, 0)
				lent = append(lent, run)
			},
			"resize": func(t *rapid.T) {
				if len(lent) == 0 {
					return
				}
				i := rapid.IntRange(0, len(lent)-1).Draw(t, "i")
				n := rapid.IntRange(1, 100).Draw(t, "n")
				before, first := len(lent[i]), lent[i][0]
				lent[i] = r.resize(lent[i], n)
				for k := before; k < n; k++ {
					lent[i][k] = first + uint64(k)
				}
				require.Len(t, lent[i], n)
				require.True(t, cap(lent[i]) < 16 || cap(lent[i]) <= 4*n, "%d for %d", cap(lent[i]), n)
			},
			"give": func(t *rapid.T) {
				if len(lent) == 0 {
					return
				}
				i := rapid.IntRange(0, len(lent)-1).Draw(t, "i")
				require.Empty(t, r.resize(lent[i], 0))
				lent = slices.Delete(lent, i, i+1)
			},
			"": func(*rapid.T) { check() },
		})
	})
}

// A pool gives back what it was given, empty, and keeps few.
func TestPool(t *testing.T) {
	var p pool[[2]int]
	var taken []*[2]int
	for i := range 100 {
		v := p.take()
		v[1] = i + 1
		taken = append(taken, v)
	}
	assert.Equal(t, 100, p.live)
	assert.EqualValues(t, 1600, p.bytes())
	for _, v := range taken {
		p.give(v)
	}
	assert.Zero(t, p.live)
	assert.Len(t, p.spare, mostSpare)
	assert.GreaterOrEqual(t, p.bytes(), int64(16*mostSpare+8*mostSpare))
	for i := range mostSpare + 1 {
		v := p.take()
		assert.Zero(t, *v)
		assert.Equal(t, i < mostSpare, slices.Contains(taken, v))
	}
}

// A map has what was put into it, and takes no more than a few times what it needs.
func TestShrinking(t *testing.T) {
	var m shrinking[uint64, int]
	for i := range 10_000 {
		m.put(uint64(i), i)
	}
	assert.EqualValues(t, 10_000*17*3/2, m.bytes())
	for i := range 9_990 {
		m.remove(uint64(i))
		require.True(t, m.most <= 64 || m.most < 4*(len(m.entries)+1))
	}
	assert.Len(t, m.entries, 10)
	for i := 9_990; i < 10_000; i++ {
		assert.Equal(t, i, m.entries[uint64(i)])
	}
	assert.LessOrEqual(t, m.bytes(), int64(64*17*3/2))
	m.remove(5)
	m.put(5, 5)
	assert.Equal(t, 5, m.entries[5])
}
