package queue_test

import (
	"math"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/queue"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSaturation(t *testing.T) {
	cs := reporting(2)
	cs[0].Waiting, cs[0].KVUsage = 3, 0.4 // max(0.6, 0.5)
	cs[1].Waiting, cs[1].KVUsage = 1, 0.8 // max(0.2, 1)
	cs[0].InFlight.Requests, cs[1].InFlight.Requests = 30, 10
	cs[1].Endpoint.MaxSequences = 20
	for _, tc := range []struct {
		name string
		by   queue.Saturation
		want float64
	}{
		{"utilization", queue.Utilization(0, 0), 0.8},
		{"other limits", queue.Utilization(10, 0.5), (0.8 + 1) / 2},
		{"concurrency", queue.Concurrency(0), 40.0 / 120},
		{"another limit", queue.Concurrency(20), 1},
	} {
		assert.InDelta(t, tc.want, tc.by.Saturation(cs), 1e-12, tc.name)
		assert.Equal(t, 1.0, tc.by.Saturation(nil), "nobody is nobody's room")
	}
	cs[0].Report = &endpick.Load{Asleep: true}
	assert.Equal(t, 1.0, queue.Utilization(0, 0).Saturation(cs), "nor is who sleeps")
}

// One endpoint's impossible report neither closes nor opens the whole fleet.
func TestUtilizationOfBrokenSignals(t *testing.T) {
	for _, broken := range []float64{nan, math.Inf(1)} {
		cs := reporting(2)
		cs[0].Waiting, cs[1].Waiting = broken, 4
		assert.Equal(t, 0.8, queue.Utilization(0, 0).Saturation(cs), "%v", broken)
		cs[0].Waiting, cs[0].KVUsage = 0, broken
		assert.Equal(t, 0.8, queue.Utilization(0, 0).Saturation(cs), "%v", broken)
		assert.Zero(t, queue.Utilization(0, 0).Saturation(cs[:1]), "nothing is known")
	}
	cs := reporting(1)
	cs[0].Waiting = 5
	assert.Equal(t, 1.0, queue.Utilization(nan, nan).Saturation(cs), "the defaults")
	cs[0].Waiting, cs[0].KVUsage = 0, 0.8
	assert.Equal(t, 1.0, queue.Utilization(-1, -1).Saturation(cs))
}

// An endpoint that reports is measured by its report, whatever is in flight there, and
// one that does not by its requests in flight: each counts as one endpoint.
func TestUtilizationOfWhoDoesNotReport(t *testing.T) {
	all := endpick.WaitingSignal | endpick.RunningSignal | endpick.KVUsageSignal
	type one struct {
		reported            endpick.Signals
		waiting, kv         float64
		inFlight, sequences int
	}
	for _, tc := range []struct {
		name string
		of   []one
		want float64
	}{
		{"nobody reports", []one{{0, 0, 0.5, 2, 2}, {0, 0, 0.5, 1, 2}}, 3.0 / 4},
		{"and all are full", []one{{0, 0, 0.5, 2, 2}, {0, 0, 0.5, 2, 2}}, 1},
		{"how much they run is not known", []one{{0, 0, 0.5, 30, 0}, {0, 0, 0.5, 10, 20}}, 40.0 / 120},
		{"what others report is none of theirs, and takes nobody's room", []one{{all, 26, 0, 0, 2}, {0, 10, 0.9, 0, 2}}, (1.0 + 0) / 2},
		{"all report", []one{{all, 1, 0, 9, 2}, {all, 4, 0, 9, 2}}, (0.2 + 0.8) / 2},
		{"some do", []one{{all, 5, 0, 9, 2}, {0, 5, 0, 1, 2}, {0, 5, 0, 0, 8}}, (1 + 2*0.1) / 3},
		{"the queue alone", []one{{endpick.WaitingSignal, 3, 0.5, 9, 2}}, 0.625},
		{"the cache alone", []one{{endpick.KVUsageSignal, 0, 0.4, 9, 2}}, 0.5},
		{"the batch alone says nothing of room", []one{{endpick.RunningSignal, 0, 0.5, 3, 2}}, 1.5},
		{"one is broken, the other does not report", []one{{all, nan, 0, 9, 2}, {0, 0, 0.5, 1, 2}}, 0.5},
	} {
		cs := fleet(len(tc.of))
		for i, o := range tc.of {
			cs[i].Reported, cs[i].Waiting, cs[i].KVUsage = o.reported, o.waiting, o.kv
			cs[i].InFlight.Requests, cs[i].Endpoint.MaxSequences = o.inFlight, o.sequences
		}
		assert.InDelta(t, tc.want, queue.Utilization(0, 0).Saturation(cs), 1e-12, tc.name)
		for i := range cs {
			cs[i].Reported = 0
		}
		assert.Equal(t, queue.Concurrency(0).Saturation(cs), queue.Utilization(0, 0).Saturation(cs), tc.name)
	}
}

// reporting returns n candidates that report empty queues and caches.
func reporting(n int) []endpick.Candidate {
	cs := fleet(n)
	for i := range cs {
		cs[i].Reported = endpick.WaitingSignal | endpick.KVUsageSignal
	}
	return cs
}

// fleet returns n candidates that have not reported.
func fleet(n int) []endpick.Candidate {
	cs := make([]endpick.Candidate, n)
	for i := range cs {
		cs[i] = endpick.Candidate{Endpoint: &endpick.Endpoint{}, Ref: endpick.EndpointRef{Slot: uint32(i), Generation: 1}}
	}
	return cs
}

func TestSaturationAdmitter(t *testing.T) {
	cs := reporting(2)
	cs[0].Waiting, cs[1].Waiting = 6, 5
	for _, tc := range []struct {
		name     string
		admitter endpick.Admitter
		priority int
		rejected bool
	}{
		{"full", queue.RejectSheddable(nil), -1, true},
		{"not sheddable", queue.RejectSheddable(nil), 0, false},
		{"room by another measure", queue.RejectSheddable(queue.Concurrency(0)), -1, false},
	} {
		req := endpick.Request{Priority: tc.priority}
		err := tc.admitter.Admit(&req, cs)
		if !tc.rejected {
			assert.NoError(t, err, tc.name)
			continue
		}
		require.ErrorAs(t, err, new(*queue.SaturatedError), tc.name)
		assert.EqualError(t, err, "queue: saturated: 1.00 of capacity is taken and priority -1 can be shed")
	}
}
