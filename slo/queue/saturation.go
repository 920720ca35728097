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

// Utilization is the mean over the endpoints of max(W/5, K/0.8), from the engines'
// queues and caches (BLIS, "Gateway Queue"). Endpoints that report neither queue
// nor cache are together as full as the zero [Concurrency] says. An endpoint whose
// signals are not finite is ignored; if there is no other, there is room. The zero
// value is ready to use.
type Utilization struct {
	// Waiting is the length of the engine's queue at which an endpoint is
	// full. Zero or less: 5.
	Waiting float64
	// KVUsage is the share of its KV cache in use at which it is. Zero or
	// less: 0.8.
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
	const reports = endpick.WaitingSignal | endpick.KVUsageSignal
	sum, known := 0.0, 0
	var silent account
	for i := range candidates {
		c := &candidates[i]
		if c.Reported&reports == 0 {
			silent.add(c, defaultRequests)
			continue
		}
		if full := max(c.Waiting/u.Waiting, c.KVUsage/u.KVUsage); !math.IsNaN(full) && !math.IsInf(full, 0) {
			sum += full
			known++
		}
	}
	if silent.endpoints > 0 {
		sum += float64(silent.endpoints) * silent.full()
		known += silent.endpoints
	}
	if known == 0 {
		return 0
	}
	return sum / float64(known)
}

// Concurrency is the number of requests in flight, divided by the number that
// the endpoints run at once. It uses only the router's own counts and needs
// no reports. The zero value is ready to use.
type Concurrency struct {
	// Requests is what an endpoint runs at once if its MaxSequences is not
	// known. Zero or less: 100.
	Requests int
}

// defaultRequests is how many requests an unknown endpoint is assumed to run at once.
const defaultRequests = 100

// Saturation implements [Saturation].
func (s Concurrency) Saturation(candidates []endpick.Candidate) float64 {
	if len(candidates) == 0 {
		return 1
	}
	if s.Requests <= 0 {
		s.Requests = defaultRequests
	}
	var all account
	for i := range candidates {
		all.add(&candidates[i], s.Requests)
	}
	return all.full()
}

// account sums what endpoints have in flight, and how much they run at once.
type account struct {
	endpoints          int
	inFlight, capacity float64
}

// add adds an endpoint, which runs unknown requests at once if its MaxSequences is not known.
func (a *account) add(c *endpick.Candidate, unknown int) {
	a.endpoints++
	a.inFlight += float64(c.InFlight.Requests)
	if c.Endpoint != nil && c.Endpoint.MaxSequences > 0 {
		a.capacity += float64(c.Endpoint.MaxSequences)
	} else {
		a.capacity += float64(unknown)
	}
}

func (a *account) full() float64 { return a.inFlight / a.capacity }
