package queue

import (
	"math"

	"github.com/endpick/endpick"
)

// Saturation says how full a set of endpoints is: 1 and above is full, NaN is not. No
// endpoints at all count as full. Implementations are safe for concurrent use.
type Saturation interface {
	Saturation(candidates []endpick.Candidate) float64
}

// Utilization is the mean over the endpoints of max(W/waiting, K/kvUsage), from the
// engines' queues and caches (BLIS, "Gateway Queue"): an endpoint is full when that
// many requests wait in its engine, or that share of its KV cache is in use, and then
// counts as 1: others have the room that they have. So does one asleep. Zero or less: 5 and 0.8.
//
// Endpoints that report neither queue nor cache are together as full as [Concurrency]
// says by default. An endpoint whose signals are not finite is ignored; if there is no
// other, there is room.
func Utilization(waiting, kvUsage float64) Saturation {
	if !(waiting > 0) {
		waiting = 5
	}
	if !(kvUsage > 0) {
		kvUsage = 0.8
	}
	return utilization{waiting, kvUsage}
}

type utilization struct{ waiting, kvUsage float64 }

func (u utilization) Saturation(candidates []endpick.Candidate) float64 {
	if len(candidates) == 0 {
		return 1
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
		if c.Report != nil && c.Report.Asleep {
			sum, known = sum+1, known+1
		} else if full := max(c.Waiting/u.waiting, c.KVUsage/u.kvUsage); !math.IsNaN(full) && !math.IsInf(full, 0) {
			sum += min(full, 1)
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

// defaultRequests is how many requests an unknown endpoint is assumed to run at once.
const defaultRequests = 100

// Concurrency is the number of requests in flight, divided by the number that the
// endpoints run at once: their MaxSequences, or where that is not known, requests.
// Zero or less: 100. It uses only the router's own counts and needs no reports.
func Concurrency(requests int) Saturation {
	if requests <= 0 {
		requests = defaultRequests
	}
	return concurrency(requests)
}

type concurrency int

func (s concurrency) Saturation(candidates []endpick.Candidate) float64 {
	if len(candidates) == 0 {
		return 1
	}
	var all account
	for i := range candidates {
		all.add(&candidates[i], int(s))
	}
	return all.full()
}

// account sums what endpoints have in flight, and how much they run at once.
type account struct {
	endpoints          int
	inFlight, capacity float64
}

// add adds an endpoint, which runs so many requests at once if its MaxSequences is not known.
func (a *account) add(c *endpick.Candidate, atOnce int) {
	a.endpoints++
	a.inFlight += float64(c.InFlight.Requests)
	if c.Endpoint != nil && c.Endpoint.MaxSequences > 0 {
		atOnce = c.Endpoint.MaxSequences
	}
	a.capacity += float64(atOnce)
}

func (a *account) full() float64 { return a.inFlight / a.capacity }
