package queue

import (
	"math"

	"github.com/endpick/endpick"
)

// Saturation says how full a set of endpoints is: 1 and above is full. No
// endpoints at all count as full. Implementations are safe for concurrent use.
type Saturation interface {
	Saturation(candidates []endpick.Candidate) float64
}

// Utilization is the mean over the endpoints of max(W/5, K/0.8), by the
// engines' queues and caches (BLIS, "Gateway Queue"). An endpoint whose signals
// are not finite takes no part; if there is no other, there is room. The zero
// value is ready.
type Utilization struct {
	// Waiting is the queue that fills an endpoint. Zero or less: 5.
	Waiting float64
	// KVUsage is the share of its KV cache that does. Zero or less: 0.8.
	KVUsage float64
}

// Saturation implements [Saturation].
func (u Utilization) Saturation(candidates []endpick.Candidate) float64 {
	if len(candidates) == 0 {
		return 1
	}
	if !(u.Waiting > 0) {
		u.Waiting = 5
	}
	if !(u.KVUsage > 0) {
		u.KVUsage = 0.8
	}
	sum, known := 0.0, 0
	for i := range candidates {
		c := &candidates[i]
		if full := max(c.Waiting/u.Waiting, c.KVUsage/u.KVUsage); !math.IsNaN(full) && !math.IsInf(full, 0) {
			sum += full
			known++
		}
	}
	if known == 0 {
		return 0
	}
	return sum / float64(known)
}

// Concurrency is the requests in flight over the requests that the endpoints
// run at once, by the router's own account: it needs no reports. The zero
// value is ready.
type Concurrency struct {
	// Requests is what an endpoint runs at once if its MaxSequences is not
	// known. Zero or less: 100.
	Requests int
}

// Saturation implements [Saturation].
func (s Concurrency) Saturation(candidates []endpick.Candidate) float64 {
	if len(candidates) == 0 {
		return 1
	}
	if s.Requests <= 0 {
		s.Requests = 100
	}
	var inFlight, capacity float64
	for i := range candidates {
		c := &candidates[i]
		inFlight += float64(c.InFlight.Requests)
		if c.Endpoint != nil && c.Endpoint.MaxSequences > 0 {
			capacity += float64(c.Endpoint.MaxSequences)
		} else {
			capacity += float64(s.Requests)
		}
	}
	return inFlight / capacity
}
