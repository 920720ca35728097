package prefix

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Capacity 160: an epoch ends when 10 blocks were used in it.
func TestAges(t *testing.T) {
	var a ages
	use := func(n int) (epoch uint32) {
		a.advance(160)
		*a.at(a.newest) += n
		a.used += n
		return a.newest
	}
	first := use(10)
	assert.Equal(t, 10, a.needed(first))
	second := use(4)
	assert.Equal(t, second, use(5), "not over yet")
	assert.Equal(t, second, use(1))
	assert.Equal(t, 10, a.needed(second))
	assert.Equal(t, 20, a.needed(first))
	third := use(7)
	assert.NotEqual(t, second, third)
	assert.Equal(t, []int{27, 17, 7}, []int{a.needed(first), a.needed(second), a.needed(third)})

	*a.at(first) -= 3 // used again
	*a.at(a.newest) += 3
	assert.Equal(t, []int{27, 20, 10}, []int{a.needed(first), a.needed(second), a.needed(third)})

	// What is in use is counted however old it is.
	*a.at(first) -= 2
	a.busy += 2
	assert.Equal(t, []int{27, 22, 12}, []int{a.needed(first), a.needed(second), a.needed(third)})
	*a.at(first) += 2
	a.busy -= 2

	// After 32 epochs the oldest ones are merged: no count is lost.
	for range 100 {
		use(10)
	}
	assert.Equal(t, 27+1000, a.needed(first))
	assert.Equal(t, 27+1000, a.needed(second))
	*a.at(first) -= 7
	*a.at(second) -= 10
	assert.Equal(t, 10+1000, a.needed(third))
	assert.Equal(t, 310, a.needed(a.newest-30))
}

// Blocks that are used again in the same epoch don't make it pass.
func TestAnEpochIsOfDifferentBlocks(t *testing.T) {
	d := newFixture(t, 160)
	for range 5 {
		d.done(d.routed(prompt(0, 9)), 0)
	}
	assert.Zero(t, d.cache().ages.newest)
	d.done(d.routed(prompt(1, 1)), 0)
	d.done(d.routed(prompt(0, 9)), 0)
	assert.EqualValues(t, 1, d.cache().ages.newest)
	assert.Equal(t, 9, d.cache().ages.used, "used in another epoch before")
}
