package endpick

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
)

// Counters are read one after the other while they change: what is seen in
// between must still make sense.
func TestTornCounters(t *testing.T) {
	s := new(endpointState)
	s.requests.Store(1)
	s.prefilling.Store(2) // a request arrived in between
	var c Candidate
	s.fill(&c, &Endpoint{}, window{})
	assert.Equal(t, InFlight{Requests: 1, Prefilling: 1}, c.InFlight)
	assert.Equal(t, []float64{1, 0}, []float64{c.Waiting, c.Running})
}

// The mean is that of the exact sum, in any order.
func TestMean(t *testing.T) {
	for _, values := range [][]float64{{0.1, 0.2, 0.3}, {0.3, 0.2, 0.1}, {0.3, 0.1, 0.2}, {0.2, 0.3, 0.1}} {
		var m mean
		for _, v := range values {
			m.add(v)
		}
		// The sum is 0.6; simple addition gives 0.6000000000000001 in some orders,
		// and the mean 0.20000000000000004.
		assert.Equal(t, 0.19999999999999998, m.or(-1), "%v", values)
	}
	var m mean
	for _, v := range []float64{1 << 53, 1, 1, 1, 1} {
		m.add(v)
	}
	assert.Equal(t, float64(1<<53+4)/5, m.or(-1))
	assert.Equal(t, 0.5, (&mean{}).or(0.5))
}

// A decision reads the state and the report of every candidate: one cache line
// each.
func TestOneCacheLine(t *testing.T) {
	assert.LessOrEqual(t, unsafe.Sizeof(endpointState{}), uintptr(64))
	assert.LessOrEqual(t, unsafe.Sizeof(report{}), uintptr(64))
}
