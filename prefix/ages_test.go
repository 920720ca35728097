package prefix

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Capacity 160: an epoch ends when 10 blocks were used in it.
func TestAges(t *testing.T) {
	var a ages
	use := func(n uint32) (epoch uint32) {
		a.advance(160)
		*a.at(a.newest) += n
		return a.newest
	}
	first := use(10)
	assert.Equal(t, 10, a.distance(first))
	second := use(4)
	assert.Equal(t, second, use(5), "not over yet")
	assert.Equal(t, second, use(1))
	assert.Equal(t, 10, a.distance(second))
	assert.Equal(t, 20, a.distance(first))
	third := use(7)
	assert.NotEqual(t, second, third)
	assert.Equal(t, []int{27, 17, 7}, []int{a.distance(first), a.distance(second), a.distance(third)})

	*a.at(first) -= 3 // used again
	*a.at(a.newest) += 3
	assert.Equal(t, []int{27, 20, 10}, []int{a.distance(first), a.distance(second), a.distance(third)})

	// After 32 epochs the oldest ones are merged: no count is lost.
	for range 100 {
		use(10)
	}
	assert.Equal(t, 27+1000, a.distance(first))
	assert.Equal(t, 27+1000, a.distance(second))
	*a.at(first) -= 7
	*a.at(second) -= 10
	assert.Equal(t, 10+1000, a.distance(third))
	assert.Equal(t, 310, a.distance(a.newest-30))
}

// What is in use is counted however old it is.
func TestAgesOfWhatIsInUse(t *testing.T) {
	var a ages
	*a.at(0) += 10
	*a.busyAt(0) += 5
	for range 100 {
		a.advance(160)
		*a.at(a.newest) += 10
		assert.EqualValues(t, 5, *a.busyAt(0))
		assert.Equal(t, 15, a.needed(a.newest))
	}
}
