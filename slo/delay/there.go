package delay

import (
	"math"

	"github.com/endpick/endpick"
)

// decision is what is there, and what the candidates of a request have in common. It holds
// m.mu for reading, from marginal.decide to end.
type decision struct {
	m          *marginal
	req        *endpick.Request
	candidates []endpick.Candidate
	now        int64
	n          float64 // expected tokens of the response
	w, c       float64
	again      float64 // k̄
	whole      float64 // mean E2E; +Inf: not known
	b          float64 // typical batch size
	waiting    float64 // W: how many of this router's requests wait for memory at each of them, on average
	shared     int     // how much of the prompt two candidates have, at least
	held       int     // how much of that they have all together

	models        []placed       // asked for so far
	variants      []variantState // seen so far
	*variantState                // of the current candidate; nil at first
	endpoint      *endpoint      // the current one's account; nil: nothing was routed there yet
	pace          float64        // its pace
	view          view           // of it
}

// variantState is what the candidates of one variant have in common.
type variantState struct {
	variant    string
	kind       *kind
	step       float64 // s: how much longer a step takes with one more request of this size
	rate       float64 // λ: requests for each server, per millisecond
	lacking    float64 // e: which share of what requests add to caches does not fit into free memory
	late, slow float64 // upper bounds of TTFT and of the rest, relative to their expected values
	residents  int     // see ever; 0: not counted yet
}

// decide begins a decision.
func (m *marginal) decide(req *endpick.Request, candidates []endpick.Candidate) *decision {
	d := m.work.Get().(*decision)
	m.mu.RLock()
	l := &m.learned
	d.m, d.req, d.candidates, d.now = m, req, candidates, nanoseconds(req.Now())
	d.n, d.w = l.lengths.of(req), m.weight(req)
	d.c, d.again, d.whole = l.crowding(), l.again.or(l.common.each[tokens]), l.whole.or(math.Inf(1))
	return d
}

// end releases the lock and the working memory.
func (d *decision) end() {
	m := d.m
	m.mu.RUnlock()
	clear(d.models)
	clear(d.variants)
	*d = decision{models: d.models[:0], variants: d.variants[:0]}
	m.work.Put(d)
}

// survey looks at all candidates. It adds up integers, so that their order does not matter.
//
// B is the batch that those who come back later will typically be in: the square of the mean
// of roots. It is much smaller than the mean where a few servers are overfull; with the
// mean, it would look no worse to stay there. One server may report anything: B is without
// outliers, and W counts no more requests at a server than this router has there.
func (d *decision) survey() {
	var roots, waiting int64
	most, next, deepest := 0.0, 0.0, 0
	for i := range d.candidates {
		c := &d.candidates[i]
		if pressed(c, &d.m.learned.common) {
			waiting += int64(1024 * min(c.Waiting, float64(c.InFlight.Requests)))
		}
		batch := min(c.BatchSize(), 1<<30)
		roots += root(batch)
		most, next = max(most, batch), max(next, min(most, batch))
		deepest, d.shared = max(deepest, c.PrefixTokens), max(d.shared, min(deepest, c.PrefixTokens))
	}
	for i := range d.candidates {
		d.held += min(d.candidates[i].PrefixTokens, d.shared)
	}
	roots -= root(most) - root(endpick.CapOutlier(len(d.candidates), most, next))
	each := 1024 * float64(max(len(d.candidates), 1))
	mean := float64(roots) / each
	d.b, d.waiting = mean*mean, float64(waiting)/each
}

// usual is how much of the prompt the candidates beside c have, on average, without what one alone has.
func (d *decision) usual(c *endpick.Candidate) int {
	return (d.held - min(c.PrefixTokens, d.shared)) / max(len(d.candidates)-1, 1)
}

func root(batch float64) int64 { return int64(math.Sqrt(batch) * 1024) }

// use makes a variant the current one.
func (d *decision) use(variant string) {
	for i := range d.variants {
		if d.variants[i].variant == variant {
			d.variantState = &d.variants[i]
			return
		}
	}
	k := d.m.learned.find(nameOf(d.req, variant))
	servers, missing := 0, int64(0)
	for i := range d.candidates {
		if c := &d.candidates[i]; c.Endpoint.Variant == variant {
			servers++
			missing += int64(d.missing(c) * (1 << 20))
		}
	}
	d.variants = append(d.variants, variantState{
		variant: variant, kind: k, late: k.late.ratio(), slow: k.slow.ratio(),
		step:    k.each[batches] + k.each[contexts]*size(d.req, d.n),
		rate:    k.arrivals.rate(d.now) / float64(servers),
		lacking: float64(missing) / float64(servers<<20),
	})
	d.variantState = &d.variants[len(d.variants)-1]
}

// at makes c the current candidate.
func (d *decision) at(c *endpick.Candidate) {
	if d.variantState == nil || c.Endpoint.Variant != d.variant {
		d.use(c.Endpoint.Variant)
	}
	d.endpoint, d.pace = d.m.endpoints.Find(c.Ref), 1
	if e := d.endpoint; e != nil {
		d.pace = e.pace.Factor(d.now)
	}
}

// latency is the request's own latency on the current candidate, in milliseconds: to the first
// token, and for each one after it.
func (d *decision) latency(c *endpick.Candidate) (first, each float64) {
	v := &d.view
	v.look(d.req, c, d.endpoint, d.kind, d.n)
	return d.kind.of(&v.first) * d.pace, d.kind.of(&v.step) * d.pace
}

// view is what a request would find on a candidate.
type view struct {
	fresh, pairs float64 // to be computed for it
	size         float64 // its tokens in memory, halfway through the response
	external     float64 // requests there that only reports show: other routers' ones
	first        amounts // of the time to first token
	step         amounts // of a decoding step beside the requests that are there
}

// firstSteps is the number of steps in which those who are there delay a first token: half of the
// current one, and the one that computes the prompt.
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
// nothing was routed there yet.
func (v *view) look(req *endpick.Request, c *endpick.Candidate, e *endpoint, k *kind, output float64) {
	*v = view{size: size(req, output), external: max(c.BatchSize()-float64(c.InFlight.Requests), 0)}
	v.fresh, v.pairs = compute(req, c.PrefixTokens)
	// Requests that wait for a place don't decode.
	there, held := min(c.BatchSize(), places(c)), sizeOn(c, k)
	// Requests that wait at the engine and came from elsewhere: like the others on average.
	queued := float64(c.InFlight.PrefillTokens) + max(c.Waiting-float64(c.InFlight.Prefilling), 0)*k.fresh.or(1)

	v.first[requests], v.first[tokens], v.first[attention] = 1, v.fresh+queued, v.pairs
	if e != nil {
		v.first[attention] += e.pairs
	}
	v.first[steps] = min(there, 1) / 2 // nobody waits for the end of a step on an idle server
	v.first[batches], v.first[contexts] = firstSteps*there, firstSteps*there*held
	v.first[blocked] = wait(c, v.fresh+queued, k)
	beside := min(there, places(c)-1)
	v.step[steps], v.step[batches], v.step[contexts] = 1, beside+1, beside*held+v.size
	if k.meanSteps > 0 {
		v.step[tokens], v.step[attention] = k.meanwhile[tokens]/k.meanSteps, k.meanwhile[attention]/k.meanSteps
	}
}

// places is how many requests decode on an endpoint at most; any others wait for a place.
// +Inf: not known.
func places(c *endpick.Candidate) float64 {
	if n := c.Endpoint.MaxSequences; n > 0 {
		return float64(n)
	}
	return math.Inf(1)
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

// missing is which share of a request's new tokens does not fit into free memory: all, where its size is
// not known. The servers of a variant share the mean, e: memory of a new one is only free for some minutes,
// and what others would lose for the request meanwhile is what they have not used for longest.
func (d *decision) missing(c *endpick.Candidate) float64 {
	fresh, _ := compute(d.req, c.PrefixTokens)
	free := float64(c.Endpoint.KVTokens)
	if e := d.m.endpoints.Find(c.Ref); e != nil {
		free -= e.filled
	}
	return 1 - min(max(free, 0)/(fresh+d.n), 1)
}
