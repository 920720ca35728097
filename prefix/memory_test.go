package prefix

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
