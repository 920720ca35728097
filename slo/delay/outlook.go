package delay

import (
	"math"

	"github.com/endpick/endpick"
)

// outlook is what a request would find on a candidate. What was evicted there is computed
// again. That is part of the request's own wait, but not of what a choice costs others:
// wherever it is computed, it takes their time and their place in a cache.
type outlook struct {
	fresh, pairs float64 // to be computed for it
	size         float64 // its tokens in memory, halfway through the response
	external     float64 // requests there that only reports show: other routers' ones
	batch        float64 // requests there that decode or soon will
	held         float64 // tokens in memory of each of these
	first        amounts // of the time to first token
	step         amounts // of a decoding step beside these requests
}

// firstSteps is how many decoding steps pass before a first token besides the
// prompt's own: half of the current one, and the one that produces it.
const firstSteps = 1.5

// compute returns how much has to be computed for a request of whose prompt so many
// tokens are cached: tokens, and pairs of one with each before it.
func compute(req *endpick.Request, cached int) (fresh, pairs float64) {
	fresh = float64(max(req.InputTokens-max(cached, 0), 1))
	return fresh, fresh * (float64(max(cached, 0)) + fresh/2)
}

// size is how many tokens a request has in memory, halfway through its response.
func size(req *endpick.Request, output float64) float64 {
	return float64(req.InputTokens) + output/2
}

// look fills in what the request would find on a candidate. e may be nil:
// nothing was routed there yet. m.mu is held.
func (m *marginal) look(o *outlook, req *endpick.Request, c *endpick.Candidate, e *endpoint, k *kind, output float64) {
	*o = outlook{size: size(req, output), batch: min(c.BatchSize(), places(c)), external: external(c), held: sizeOn(c, k)}
	o.fresh, o.pairs = compute(req, c.ExpectedCached())
	// Requests that wait at the engine and came from elsewhere: like the others on average.
	queued := float64(c.InFlight.PrefillTokens) + max(c.Waiting-float64(c.InFlight.Prefilling), 0)*k.fresh.or(1)

	o.first[requests], o.first[tokens], o.first[pairs] = 1, o.fresh+queued, o.pairs
	if e != nil {
		o.first[pairs] += e.pairs
	}
	o.first[steps], o.first[batches], o.first[contexts] = firstSteps, firstSteps*o.batch, firstSteps*o.batch*o.held
	if m.without&room == 0 {
		o.first[blocked] = wait(c, o.fresh+queued, k)
	}
	o.step[steps], o.step[batches], o.step[contexts] = 1, o.batch+1, o.batch*o.held+o.size
	if k.meanSteps > 0 {
		o.step[tokens], o.step[pairs] = k.meanwhile[tokens]/k.meanSteps, k.meanwhile[pairs]/k.meanSteps
	}
}

// pressed reports whether memory is likely to get full during a response, so that
// some requests wait for it, cached blocks have been evicted, and measurements
// depend on that: the free memory is less than a standard deviation of what requests
// of that size, coming and going at random, use.
func pressed(c *endpick.Candidate, k *kind) bool {
	n, size := float64(c.Endpoint.KVTokens), k.size.or(0)
	if n <= 0 || size <= 0 || c.Reported&endpick.KVUsageSignal == 0 {
		return false
	}
	return 1-c.KVUsage < math.Sqrt(size/n)
}

// places is how many requests decode on an endpoint at most; any others wait for a place.
// +Inf: not known.
func places(c *endpick.Candidate) float64 {
	if n := c.Endpoint.MaxSequences; n > 0 {
		return float64(n)
	}
	return math.Inf(1)
}

// external is how many requests on an endpoint are not this router's.
func external(c *endpick.Candidate) float64 {
	return max(c.BatchSize()-float64(c.InFlight.Requests), 0)
}

// sizeOn is how many tokens each request on an endpoint has in memory, on average.
func sizeOn(c *endpick.Candidate, k *kind) float64 {
	if c.InFlight.Requests <= 0 {
		return k.size.or(1)
	}
	return (float64(c.InFlight.ContextTokens) + float64(c.InFlight.OutputTokens)) / float64(c.InFlight.Requests)
}

// wait is how long, in milliseconds, it takes until there is room for a request
// that needs so many tokens, with those before it. The missing share of the
// memory, or of the places in the batch, becomes free in that share of the time
// of a response.
func wait(c *endpick.Candidate, needed float64, k *kind) float64 {
	missing := 0.0
	if n := float64(c.Endpoint.KVTokens); n > 0 && c.Reported&endpick.KVUsageSignal != 0 {
		missing = max(c.KVUsage+needed/n-1, 0)
	}
	missing = max(missing, (c.BatchSize()+1)/places(c)-1)
	return missing * k.decoding.or(0)
}
