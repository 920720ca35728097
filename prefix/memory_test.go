package prefix

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A pool gives back what it was given, empty, and keeps few.
func TestPool(t *testing.T) {
	var p pool[[2]int64]
	var taken []*[2]int64
	for i := range 100 {
		v := p.take()
		v[1] = int64(i + 1)
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
	var m shrinking[uint64, int64]
	for i := range 10_000 {
		m.put(uint64(i), int64(i))
	}
	assert.EqualValues(t, 10_000*17*3/2, m.bytes())
	for i := range 9_990 {
		m.remove(uint64(i))
		require.True(t, m.most <= 64 || m.most < 4*(len(m.entries)+1))
	}
	assert.Len(t, m.entries, 10)
	for i := 9_990; i < 10_000; i++ {
		assert.EqualValues(t, i, m.entries[uint64(i)])
	}
	assert.LessOrEqual(t, m.bytes(), int64(64*17*3/2))
	m.remove(5)
	m.put(5, 5)
	assert.EqualValues(t, 5, m.entries[5])
}

// A run that was given back is lent again where it is at most a quarter too long.
func TestRuns(t *testing.T) {
	for n, reused := range map[int]bool{79: false, 80: true, 100: true, 101: false} {
		var r runs
		r.give(r.take(100)[:0:100])
		assert.Equal(t, reused, cap(r.take(n)) == 100 && r.spare[0] == nil, n)
	}
	var r runs
	a, b := r.take(10), r.take(10)
	assert.Len(t, a, 10)
	assert.Equal(t, cap(a)+cap(b), r.room)
	r.give(a)
	r.give(nil)
	assert.Equal(t, cap(a)+cap(b), r.room, "spare ones count")
	assert.NotSame(t, &r.take(10)[0], &r.take(10)[0], "it is lent once")
	for range 2 * mostSpare {
		r.give(make([]uint64, 0, mostRoom))
	}
	r.room = mostSpare * mostRoom
	r.give(make([]uint64, 0, mostRoom+1))
	assert.Equal(t, mostSpare*mostRoom-mostRoom-1, r.room, "long ones are not kept")
	r.give(make([]uint64, 0, 1))
	assert.Equal(t, mostSpare*mostRoom-2*mostRoom-1, r.room, "the oldest spare one gives way")
}
