package scorertest

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/endpick/endpick"
)

// RunPolicy checks that routers with the policy keep their invariants whatever
// is asked of them: the same inputs give the same choices, even if the
// endpoints were added in another order; a request goes to an endpoint that
// serves its model and is not excluded; what is in flight is what is open, and
// nothing when all is closed. newPolicy returns a policy without history; it is
// called many times.
func RunPolicy(t *testing.T, newPolicy func(*testing.T) endpick.Policy) {
	t.Helper()
	t.Run("invariants", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			n := rapid.IntRange(1, 6).Draw(rt, "endpoints")
			var endpoints []endpick.Endpoint
			for i := range n {
				endpoints = append(endpoints, endpick.Endpoint{ID: fmt.Sprintf("server-%d", i), Models: []string{fmt.Sprintf("model-%d", i%2)}})
			}
			seed := rapid.Uint64Min(1).Draw(rt, "seed")
			one := newHost(t, newPolicy(t), endpoints, seed)
			other := newHost(t, newPolicy(t), rapid.Permutation(endpoints).Draw(rt, "other order"), seed)
			for range rapid.IntRange(1, 40).Draw(rt, "steps") {
				step(rt, one, other)
			}
			one.closeAll(rt)
			other.closeAll(rt)
		})
	})
}

// host is a router with the leases that are open on it.
type host struct {
	router *endpick.Router
	now    time.Time
	open   []endpick.Lease
}

func newHost(t *testing.T, p endpick.Policy, endpoints []endpick.Endpoint, seed uint64) *host {
	t.Helper()
	h := &host{now: time.Unix(1, 0)}
	r, err := endpick.New(endpick.Config{
		Policy: p, Endpoints: endpoints, Seed: seed,
		Clock: func() time.Time { return h.now },
	})
	if err != nil {
		t.Fatal(err)
	}
	h.router = r
	return h
}

// step does the same to both hosts.
func step(rt *rapid.T, one, other *host) {
	wait := time.Duration(rapid.Int64Range(0, int64(2*time.Second)).Draw(rt, "wait"))
	one.now, other.now = one.now.Add(wait), other.now.Add(wait)
	switch kind := rapid.IntRange(0, 5).Draw(rt, "step"); {
	case kind <= 2:
		req := Requests().Draw(rt, "request")
		req.Adapter = ""
		req.Model = rapid.SampledFrom([]string{"model-0", "model-1"}).Draw(rt, "model")
		req.InputTokens = min(req.InputTokens, 1<<14)
		// Prompts of few families, so that heads are shared.
		family := rapid.Uint64Range(0, 3).Draw(rt, "family")
		for i := range req.InputTokens / endpick.DefaultBlockTokens {
			req.Blocks = append(req.Blocks, endpick.Salt(fmt.Sprint(family, i)))
		}
		if rapid.IntRange(0, 4).Draw(rt, "exclude") == 0 {
			req.Exclude = []string{"server-0"}
		}
		route(rt, req, one, other)
	case kind == 3:
		id := fmt.Sprintf("server-%d", rapid.IntRange(0, 5).Draw(rt, "endpoint"))
		load := endpick.Load{
			Waiting: float64(rapid.IntRange(0, 20).Draw(rt, "waiting")),
			Running: float64(rapid.IntRange(0, 200).Draw(rt, "running")),
			KVUsage: rapid.Float64Range(0, 1).Draw(rt, "KV usage"),
		}
		a, b := one.router.Report(id, load), other.router.Report(id, load)
		if (a == nil) != (b == nil) {
			rt.Fatalf("report: %v and %v", a, b)
		}
	case len(one.open) > 0:
		i := rapid.IntRange(0, len(one.open)-1).Draw(rt, "lease")
		outcome := endpick.Outcome{Status: endpick.Status(rapid.IntRange(0, 2).Draw(rt, "status")), OutputTokens: 10}
		for _, h := range []*host{one, other} {
			h.open[i].Tokens(5)
			if kind == 5 {
				h.open[i].Done(outcome)
				h.open = append(h.open[:i:i], h.open[i+1:]...)
			}
		}
	}
	one.checkAccounts(rt)
}

func route(rt *rapid.T, req endpick.Request, one, other *host) {
	a, errA := one.router.Route(req)
	b, errB := other.router.Route(req)
	switch {
	case (errA == nil) != (errB == nil):
		rt.Fatalf("one router said %v, the other %v", errA, errB)
	case errA != nil:
		return
	case a.Endpoint().ID != b.Endpoint().ID:
		rt.Fatalf("one router chose %s, the other %s", a.Endpoint().ID, b.Endpoint().ID)
	case len(req.Exclude) > 0 && a.Endpoint().ID == req.Exclude[0]:
		rt.Fatalf("%s was excluded", a.Endpoint().ID)
	case a.Endpoint().Models[0] != req.Model:
		rt.Fatalf("%s does not serve %s", a.Endpoint().ID, req.Model)
	}
	one.open, other.open = append(one.open, a), append(other.open, b)
}

func (h *host) checkAccounts(rt *rapid.T) {
	requests := 0
	for _, e := range h.router.Endpoints() {
		requests += e.Candidate.InFlight.Requests
	}
	if requests != len(h.open) {
		rt.Fatalf("%d requests in flight, %d leases open", requests, len(h.open))
	}
}

func (h *host) closeAll(rt *rapid.T) {
	for _, l := range h.open {
		l.Done(endpick.Outcome{})
	}
	for _, e := range h.router.Endpoints() {
		if e.Candidate.InFlight != (endpick.InFlight{}) {
			rt.Fatalf("%s: %+v in flight after all is done", e.Candidate.Endpoint.ID, e.Candidate.InFlight)
		}
	}
}
