package queue_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/queue"
)

func TestSaturation(t *testing.T) {
	cs := fleet(2)
	cs[0].Waiting, cs[0].KVUsage = 3, 0.4 // max(0.6, 0.5)
	cs[1].Waiting, cs[1].KVUsage = 1, 0.8 // max(0.2, 1)
	cs[0].InFlight.Requests, cs[1].InFlight.Requests = 30, 10
	cs[1].Endpoint.MaxSequences = 20
	for _, tc := range []struct {
		name string
		by   queue.Saturation
		want float64
	}{
		{"utilization", queue.Utilization{}, 0.8},
		{"other limits", queue.Utilization{Waiting: 1, KVUsage: 0.4}, (3 + 2) / 2.0},
		{"concurrency", queue.Concurrency{}, 40.0 / 120},
		{"another limit", queue.Concurrency{Requests: 20}, 1},
	} {
		assert.InDelta(t, tc.want, tc.by.Saturation(cs), 1e-12, tc.name)
		assert.Equal(t, 1.0, tc.by.Saturation(nil), "nobody is nobody's room")
	}
}

// What one endpoint says of itself that can't be neither closes nor opens the
// whole fleet.
func TestUtilizationOfBrokenSignals(t *testing.T) {
	for _, broken := range []float64{nan, math.Inf(1)} {
		cs := fleet(2)
		cs[0].Waiting, cs[1].Waiting = broken, 4
		assert.Equal(t, 0.8, queue.Utilization{}.Saturation(cs), "%v", broken)
		cs[0].Waiting, cs[0].KVUsage = 0, broken
		assert.Equal(t, 0.8, queue.Utilization{}.Saturation(cs), "%v", broken)
		assert.Zero(t, queue.Utilization{}.Saturation(cs[:1]), "nothing is known")
	}
	cs := fleet(1)
	cs[0].Waiting = 5
	assert.Equal(t, 1.0, queue.Utilization{Waiting: nan, KVUsage: nan}.Saturation(cs), "the defaults")
	cs[0].Waiting, cs[0].KVUsage = 0, 0.8
	assert.Equal(t, 1.0, queue.Utilization{Waiting: -1, KVUsage: -1}.Saturation(cs))
}

// fleet has n candidates that nothing is known of.
func fleet(n int) []endpick.Candidate {
	cs := make([]endpick.Candidate, n)
	for i := range cs {
		cs[i] = endpick.Candidate{Endpoint: &endpick.Endpoint{}, Ref: endpick.Ref{Slot: uint32(i), Generation: 1}}
	}
	return cs
}
