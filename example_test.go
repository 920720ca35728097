package endpick_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/endpick/endpick"
)

// A request is routed, its response is followed, and the lease is closed.
func Example() {
	router, err := endpick.New(endpick.Config{
		Endpoints: []endpick.Endpoint{
			{Address: "10.0.0.1:8000", Models: []string{"llama"}},
			{Address: "10.0.0.2:8000", Models: []string{"qwen"}},
		},
	})
	if err != nil {
		panic(err)
	}
	lease, err := router.Route(endpick.Request{Model: "llama", InputTokens: 1200, Stream: true})
	if err != nil {
		panic(err)
	}
	fmt.Println("send to", lease.Endpoint().Address)
	lease.FirstToken()
	lease.Tokens(40)
	fmt.Println("open leases:", router.Stats().OpenLeases)
	lease.Done(endpick.Outcome{OutputTokens: 40})
	fmt.Println("open leases:", router.Stats().OpenLeases)

	_, err = router.Route(endpick.Request{Model: "gemma"})
	fmt.Println(errors.As(err, new(*endpick.NoEndpointError)), err)
	// Output:
	// send to 10.0.0.1:8000
	// open leases: 1
	// open leases: 0
	// true endpick: no endpoint for model "gemma": 0 of 2 serve it, 0 excluded, 0 draining; there are ["llama" "qwen"]
}

// Cheapest is a scorer of your own: it reads a label of the endpoint.
type Cheapest struct{}

func (Cheapest) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i := range candidates {
		dst[i] = 0 // every slot is written
		if candidates[i].Endpoint.Labels["price"] == "spot" {
			dst[i] = 1
		}
	}
}

func ExampleScorer() {
	router, err := endpick.New(endpick.Config{
		Policy: endpick.Policy{Scorers: []endpick.Weighted{{Scorer: Cheapest{}, Weight: 1}}},
		Endpoints: []endpick.Endpoint{
			{ID: "reserved"},
			{ID: "cheap", Labels: map[string]string{"price": "spot"}},
		},
	})
	if err != nil {
		panic(err)
	}
	lease, err := router.Route(endpick.Request{InputTokens: 10})
	if err != nil {
		panic(err)
	}
	defer lease.Done(endpick.Outcome{})
	fmt.Println(lease.Endpoint().ID)
	// Output: cheap
}

// Flaky lowers the score of endpoints that have recently failed requests. It
// learns as a DoneObserver, and keeps a value for each endpoint.
type Flaky struct {
	endpick.Exclusive // handles mean something else in another router

	mu       sync.Mutex
	failures endpick.PerEndpoint[float64]
}

func (f *Flaky) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range candidates {
		dst[i] = 1
		if share := f.failures.Find(candidates[i].Ref); share != nil {
			dst[i] = 1 - *share
		}
	}
}

func (f *Flaky) Done(e *endpick.Event, o *endpick.Outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	share := f.failures.At(e.Candidate.Ref)
	if share == nil {
		return // the endpoint has been removed
	}
	*share *= 0.9
	if o.Status == endpick.Failed {
		*share += 0.1
	}
}

func (f *Flaky) EndpointRemoved(ref endpick.EndpointRef) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures.Drop(ref)
}

// A scorer that learns: the endpoint that has failed a request comes last.
func ExamplePerEndpoint() {
	router, err := endpick.New(endpick.Config{
		Policy:    endpick.Policy{Scorers: []endpick.Weighted{{Scorer: &Flaky{}, Weight: 1}}},
		Endpoints: []endpick.Endpoint{{ID: "a"}, {ID: "b"}},
	})
	if err != nil {
		panic(err)
	}
	lease, err := router.Route(endpick.Request{Exclude: []string{"b"}})
	if err != nil {
		panic(err)
	}
	lease.Done(endpick.Outcome{Status: endpick.Failed})

	var receipt endpick.Receipt
	lease, err = router.Route(endpick.Request{Receipt: &receipt})
	if err != nil {
		panic(err)
	}
	defer lease.Done(endpick.Outcome{})
	for _, v := range receipt.Verdicts {
		fmt.Println(v.Candidate.Endpoint.ID, v.Score)
	}
	// Output:
	// b 1
	// a 0.9
}

// SameZone is a filter of your own. If no endpoint is in the zone it keeps
// none, which means no opinion.
type SameZone string

func (z SameZone) Filter(_ *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	return endpick.Keep(candidates, func(c *endpick.Candidate) bool {
		return c.Endpoint.Labels["zone"] == string(z)
	})
}

func ExampleFilter() {
	router, err := endpick.New(endpick.Config{
		Policy: endpick.Policy{Filters: []endpick.Filter{SameZone("north")}},
		Endpoints: []endpick.Endpoint{
			{ID: "far", Labels: map[string]string{"zone": "south"}},
			{ID: "near", Labels: map[string]string{"zone": "north"}},
		},
	})
	if err != nil {
		panic(err)
	}
	for range 2 {
		lease, err := router.Route(endpick.Request{InputTokens: 10})
		if err != nil {
			panic(err)
		}
		fmt.Println(lease.Endpoint().ID)
		lease.Done(endpick.Outcome{})
		if err := router.Drain("near"); err != nil {
			panic(err)
		}
	}
	// Output:
	// near
	// far
}

// NearBest is a picker of your own: it draws one of the candidates whose scores are
// at most this far below the best.
type NearBest float64

var saltNearBest = endpick.Salt("near-best")

func (d NearBest) Pick(req *endpick.Request, candidates []endpick.Candidate, scores []float64) int {
	best := slices.Max(scores)
	picked, drawn := 0, -1.0
	for i := range candidates {
		if scores[i] < best-float64(d) {
			continue
		}
		// A number for each request and endpoint, so that the order does not matter.
		if u := req.ChanceOf(saltNearBest, &candidates[i]); u > drawn {
			picked, drawn = i, u
		}
	}
	return picked
}

func ExamplePicker() {
	router, err := endpick.New(endpick.Config{
		Policy: endpick.Policy{
			Scorers: []endpick.Weighted{{Scorer: Cheapest{}, Weight: 1}},
			Picker:  NearBest(0.1),
		},
		Endpoints: []endpick.Endpoint{
			{ID: "reserved"},
			{ID: "spot-1", Labels: map[string]string{"price": "spot"}},
			{ID: "spot-2", Labels: map[string]string{"price": "spot"}},
		},
		Seed: 1,
	})
	if err != nil {
		panic(err)
	}
	picked := map[string]int{}
	for range 1000 {
		lease, err := router.Route(endpick.Request{InputTokens: 10})
		if err != nil {
			panic(err)
		}
		picked[lease.Endpoint().ID]++
		lease.Done(endpick.Outcome{})
	}
	fmt.Println(picked["reserved"], picked["spot-1"] > 400, picked["spot-2"] > 400)
	// Output: 0 true true
}

// A receipt says why an endpoint was chosen.
func ExampleReceipt() {
	router, err := endpick.New(endpick.Config{
		Policy:    endpick.Policy{Name: "cheapest", Scorers: []endpick.Weighted{{Scorer: Cheapest{}, Weight: 1}}},
		Endpoints: []endpick.Endpoint{{ID: "a"}, {ID: "b", Labels: map[string]string{"price": "spot"}}},
	})
	if err != nil {
		panic(err)
	}
	if err := router.Report("b", endpick.Load{Waiting: 2, Running: 8, KVUsage: 0.75}); err != nil {
		panic(err)
	}
	var receipt endpick.Receipt
	lease, err := router.Route(endpick.Request{Model: "llama", InputTokens: 900, Receipt: &receipt})
	if err != nil {
		panic(err)
	}
	defer lease.Done(endpick.Outcome{})
	fmt.Print(receipt.String())
	// Output:
	// request 1, policy cheapest, model "llama", 900 tokens
	// * b                W 2    R 8    K 0.75  Q 0       H 0       score 1, endpick_test.Cheapest 1
	//   a                W ~2   R ~8   K ~0.75 Q 0       H 0       score 0, endpick_test.Cheapest 0
	// regret 0
}

// AtMost admits so many requests of each tenant at one time.
type AtMost struct {
	endpick.Exclusive
	N int

	mu   sync.Mutex
	open map[string]int
}

func (a *AtMost) Admit(req *endpick.Request, _ []endpick.Candidate) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open[req.Tenant] >= a.N {
		return fmt.Errorf("tenant %s has %d requests in flight", req.Tenant, a.N)
	}
	a.add(req.Tenant, 1) // now, not in Routed, because others may come in between
	return nil
}

// Withdrawn undoes Admit for a request that is not routed after all.
func (a *AtMost) Withdrawn(req *endpick.Request) { a.count(req.Tenant, -1) }

// Routed counts requests for which Admit is not called.
func (a *AtMost) Routed(e *endpick.Event) {
	if e.Request.Adopted != nil {
		a.count(e.Request.Tenant, 1)
	}
}

func (a *AtMost) Done(e *endpick.Event, _ *endpick.Outcome) { a.count(e.Request.Tenant, -1) }

func (a *AtMost) count(tenant string, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.add(tenant, n)
}

func (a *AtMost) add(tenant string, n int) {
	if a.open == nil {
		a.open = map[string]int{}
	}
	if a.open[tenant] += n; a.open[tenant] == 0 {
		delete(a.open, tenant) // the table does not grow with names
	}
}

// An admitter that counts the requests of each tenant: what it adds in Admit it subtracts
// in Done, or in Withdrawn.
func ExampleAdmitter() {
	router, err := endpick.New(endpick.Config{
		Policy:    endpick.Policy{Admitters: []endpick.Admitter{&AtMost{N: 2}}},
		Endpoints: []endpick.Endpoint{{ID: "a"}},
	})
	if err != nil {
		panic(err)
	}
	route := func(req endpick.Request) endpick.Lease {
		lease, err := router.Route(req)
		fmt.Println(req.Tenant, err)
		return lease
	}
	first := route(endpick.Request{Tenant: "red"})
	route(endpick.Request{Tenant: "red", Adopted: &endpick.Adopted{Endpoint: "a"}}) // sent already
	route(endpick.Request{Tenant: "red"})
	route(endpick.Request{Tenant: "blue"})
	first.Done(endpick.Outcome{})
	route(endpick.Request{Tenant: "red"})
	// Output:
	// red <nil>
	// red <nil>
	// red endpick: request rejected: tenant red has 2 requests in flight
	// blue <nil>
	// red <nil>
}

// A failed request's lease is closed, and the request is routed again to another endpoint.
func ExampleRequest_exclude() {
	router, err := endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "a"}, {ID: "b"}}})
	if err != nil {
		panic(err)
	}
	send := func(e *endpick.Endpoint) error {
		if e.ID == "a" {
			return errors.New("connection refused")
		}
		return nil
	}
	var tried []string
	var failure error // of the last attempt: it says more than that no endpoint is left
	for {
		lease, err := router.Route(endpick.Request{InputTokens: 10, Exclude: tried})
		if err != nil {
			fmt.Println(cmp.Or(failure, err))
			return
		}
		endpoint := lease.Endpoint()
		if failure = send(endpoint); failure == nil {
			lease.Done(endpick.Outcome{})
			fmt.Println("answered by", endpoint.ID)
			return
		}
		lease.Done(endpick.Outcome{Status: endpick.Failed})
		tried = append(tried, endpoint.ID)
	}
	// Output: answered by b
}

// The policy changes while the router runs; leases and endpoints stay.
func ExampleRouter_SetPolicy() {
	router, err := endpick.New(endpick.Config{
		Endpoints: []endpick.Endpoint{{ID: "a"}, {ID: "b", Labels: map[string]string{"price": "spot"}}},
	})
	if err != nil {
		panic(err)
	}
	old, err := router.Route(endpick.Request{InputTokens: 10})
	if err != nil {
		panic(err)
	}
	err = router.SetPolicy(endpick.Policy{Scorers: []endpick.Weighted{{Scorer: Cheapest{}, Weight: 1}}})
	if err != nil {
		panic(err)
	}
	lease, err := router.Route(endpick.Request{InputTokens: 10})
	if err != nil {
		panic(err)
	}
	fmt.Println(lease.Endpoint().ID, router.Stats().OpenLeases)
	fmt.Println(old.Done(endpick.Outcome{}), lease.Done(endpick.Outcome{}), lease.Done(endpick.Outcome{}))

	err = router.SetPolicy(endpick.Policy{Scorers: []endpick.Weighted{{Scorer: Cheapest{}}}})
	fmt.Println(err)
	// Output:
	// b 2
	// true true false
	// endpick: config: Policy.Scorers[0].Weight is 0; leave a scorer out to switch it off
}

// A Snapshot is taken when an engine is asked; what is routed until it answers, and
// afterwards, is added to what it reports.
func ExampleRouter_Snapshot() {
	now := time.Unix(0, 0)
	router, err := endpick.New(endpick.Config{
		Endpoints: []endpick.Endpoint{{ID: "a"}},
		Clock:     func() time.Time { return now },
	})
	if err != nil {
		panic(err)
	}
	asked := router.Snapshot("a") // ask the engine now
	for range 3 {
		if _, err := router.Route(endpick.Request{InputTokens: 10, Stream: true}); err != nil {
			panic(err)
		}
	}
	// The engine answers: it had one request in its batch. Two had not reached it.
	if err := router.Report("a", endpick.Load{Running: 1, KVUsage: 0.5, Snapshot: asked}); err != nil {
		panic(err)
	}
	c := router.Endpoints()[0].Candidate
	fmt.Println(c.Waiting, c.Running, c.BatchSize())
	// Output: 2 1 3
}
