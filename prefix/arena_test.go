package prefix

import (
	"slices"
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

// Slices lent at the same time never overlap, and none is lost.
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
					total += int64(cap(slices.Grow([]uint64(nil), int(x.cap))))
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

// Numbers are reused, the lowest chunk first; all but a few empty chunks are
// released.
func TestArenaGivesBack(t *testing.T) {
	var a arena[[64]byte]
	for i := range uint32(100 * chunkLen) {
		id, v := a.take()
		require.Equal(t, i+1, id)
		v[0] = 1
	}
	full := a.bytes()
	for i := range uint32(98 * chunkLen) {
		a.give(chunkLen + i)
	}
	require.Less(t, a.bytes(), full/4)
	require.Len(t, a.spares, maxSpares)
	require.Equal(t, 2*chunkLen, a.count)
	require.Nil(t, a.find(chunkLen))
	require.NotNil(t, a.find(99*chunkLen))
	a.give(7)
	for _, want := range []uint32{7, 100*chunkLen + 1} { // released chunks are only allocated again when all others are full
		id, v := a.take()
		require.Equal(t, want, id)
		require.Zero(t, v[0], "as new")
	}
}

func TestSlabGivesBack(t *testing.T) {
	var s slab[uint64]
	var lent []vec[uint64]
	for range 10_000 {
		lent = append(lent, s.take(1))
	}
	for _, x := range lent {
		s.give(x)
	}
	all, idle := s.bytes()
	require.EqualValues(t, 80_000, idle)
	require.Greater(t, all, 10_000*(8+vecSize))
	for range 9990 { // taken again: the list of free ones is short now
		s.take(1)
	}
	all, _ = s.bytes()
	require.Less(t, all, int64(80_000+100*vecSize))

	long := s.take(1000)
	require.EqualValues(t, 1024, s.shrink(long, 257).cap, "not yet")
	require.EqualValues(t, 256, s.shrink(long, 256).cap)
}

func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tab table
		twin := map[uint32]uint32{} // tags by number
		for range rapid.IntRange(0, 2000).Draw(t, "filled") {
			id := uint32(len(twin) + 1)
			twin[id] = id * 0x9e3779b9 % 512 // many share a tag
			tab.insert(twin[id], id)
		}
		keep := rapid.IntRange(0, 50).Draw(t, "kept")
		for id, tag := range twin {
			if len(twin) > keep {
				tab.remove(tag, id)
				delete(twin, id)
			}
		}
		for id, tag := range twin {
			require.Equal(t, id, tab.find(tag, func(n uint32) bool { return n == id }))
			require.Zero(t, tab.find(tag, func(n uint32) bool { return n == id+5000 }))
		}
		require.Equal(t, len(twin), tab.count)
		require.LessOrEqual(t, len(tab.slots), max(64, 16*len(twin)), "it gives back what it does not need")
	})
}
