package endpick

import (
	"math"
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

// Of the requests that came while the engine was asked, its count has room for some, and of those
// that began to prefill then it counts as large a part. What it does not report is no room.
func TestWhatAReportCounts(t *testing.T) {
	for _, x := range []struct {
		load                 Load
		mark, now            Mark
		requests, prefilling int32
	}{
		{Load{Waiting: 1, Running: 1}, Mark{}, Mark{requests: 3, prefilling: 1}, 2, 1}, // 2/3 of one
		{Load{Waiting: 1, Running: 0}, Mark{}, Mark{requests: 3, prefilling: 1}, 1, 0},
		{Load{Running: 2}, Mark{requests: 4, prefilling: 3}, Mark{requests: 1}, 2, 1}, // two of three have gone
		{Load{Waiting: 9, Running: 2, Absent: WaitingSignal}, Mark{}, Mark{requests: 3, prefilling: 3}, 2, 2},
		{Load{Waiting: 2, Running: math.NaN(), Absent: RunningSignal}, Mark{}, Mark{requests: 3, prefilling: 3}, 2, 2},
	} {
		rep := x.load.prepare(0, x.mark, x.now)
		assert.Equal(t, []int32{x.requests, x.prefilling}, []int32{rep.requests, rep.prefilling}, "%+v", x)
	}
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
