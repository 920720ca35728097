package scorer

import "github.com/endpick/endpick"

// QueueDepth scores load relative to the other candidates: the smallest batch
// size scores 1, the largest 0, and others in proportion; if all are equal, all
// score 1. The load is BS = W + R, each request counted once. See BLIS, "Scorer
// Composition".
func QueueDepth() endpick.Scorer { return queueDepth{} }

type queueDepth struct{}

func (queueDepth) Name() string { return "queue-depth" }

func (queueDepth) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	least, most := batchRange(candidates)
	if most <= least {
		for i := range candidates {
			dst[i] = 1
		}
		return
	}
	for i := range candidates {
		dst[i] = (most - candidates[i].BatchSize()) / (most - least)
	}
}

// batchRange returns the smallest and the largest batch size.
func batchRange(candidates []endpick.Candidate) (least, most float64) {
	for i := range candidates {
		bs := candidates[i].BatchSize()
		if i == 0 {
			least = bs
		}
		least, most = min(least, bs), max(most, bs)
	}
	return least, most
}

// KVUsage scores 1 − K.
func KVUsage() endpick.Scorer { return kvUsage{} }

type kvUsage struct{}

func (kvUsage) Name() string { return "kv-utilization" }

func (kvUsage) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i := range candidates {
		dst[i] = 1 - candidates[i].KVUsage
	}
}

// LeastLoaded prefers the smallest batch size BS, and among equal ones the
// fewest prompt tokens waiting for prefill.
func LeastLoaded() endpick.Scorer { return leastLoaded{} }

type leastLoaded struct{}

func (leastLoaded) Name() string { return "least-loaded" }

func (leastLoaded) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i := range candidates {
		c := &candidates[i]
		// Scaled below 1, so that tokens never outweigh a request.
		tokens := float64(c.InFlight.PrefillTokens)
		dst[i] = fromCost(c.BatchSize() + tokens/(1+tokens)/2)
	}
}
