package invariants

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/endpick/endpick"
)

// At every moment, open leases equal what is in flight on each endpoint, in
// requests and in tokens of every kind; once all are closed, nothing is.
func TestInvariantConservation(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt, options{})
		for _, s := range draw(rt) {
			w.apply(s)
			want := map[endpick.Ref]endpick.InFlight{}
			open := 0
			for _, l := range w.leases {
				if l.closed {
					continue
				}
				open++
				f := want[l.ref]
				f.Requests++
				f.ContextTokens += l.input
				f.OutputTokens += l.output
				if l.prefilling {
					f.Prefilling++
					f.PrefillTokens += l.fresh
				}
				want[l.ref] = f
			}
			seen := 0
			for _, e := range w.router.Endpoints() {
				c := &e.Candidate
				if c.InFlight != want[c.Ref] {
					w.failf("%s: %+v in flight, and its open leases come to %+v", c.Endpoint.ID, c.InFlight, want[c.Ref])
				}
				if e.Removed == w.here(c.Ref) {
					w.failf("%s is said to be removed: %v", c.Endpoint.ID, e.Removed)
				}
				seen += c.InFlight.Requests
			}
			if n := w.router.Stats().OpenLeases; n != open || seen != open {
				w.failf("%d leases are open, the router says %d, and %d are on endpoints", open, n, seen)
			}
		}
		w.closeAll()
	})
}

// here reports whether an endpoint of this generation takes requests, or would.
func (w *world) here(ref endpick.Ref) bool {
	for id := range w.present {
		if r, ok := w.router.Ref(id); ok && r == ref {
			return true
		}
	}
	return false
}

// Whatever is called, however often, from any goroutine: each request is routed
// once, has at most one first token and ends once, in this order, for every
// observer, even beside a stage that panics, and across policies.
func TestInvariantExactlyOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt, options{})
		routed := 0
		for _, s := range draw(rt) {
			if d := w.apply(s); d != nil && d.lease != nil {
				routed++
			}
		}
		w.closeAll()
		if len(w.spy.heard) != routed {
			w.failf("%d requests were routed, and the spy has heard of %d", routed, len(w.spy.heard))
		}
		for ref, h := range w.spy.heard {
			if h.routed != 1 || h.first > 1 || h.done != 1 || !h.order {
				w.failf("lease %v: Routed %d times, FirstToken %d, Done %d, in order %v", ref, h.routed, h.first, h.done, h.order)
			}
		}
		if s := w.router.Stats(); s.Closed != uint64(routed)+80 {
			w.failf("%d requests were routed, and %d closed", routed+80, s.Closed)
		}
	})
}

// Endpoints are added, removed, changed and added again while requests are routed:
// no request that has an endpoint fails, an endpoint that returns keeps nothing of
// its former life, and each observer hears of each removal once.
func TestInvariantChurn(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt, options{})
		refs := map[endpick.Ref]string{}
		gone := 0
		for _, s := range draw(rt) {
			before := map[string]endpick.Ref{}
			for id := range w.present {
				before[id], _ = w.router.Ref(id)
			}
			d := w.apply(s) // fails if a request with an endpoint is refused
			if d != nil && d.err == nil {
				if e, there := w.present[d.id]; !there || w.draining[d.id] || !serves(&e, d.receipt.Model) {
					w.failf("%s was chosen for %q: there %v, drained %v", d.id, d.receipt.Model, there, w.draining[d.id])
				}
			}
			for id, ref := range before {
				if now, ok := w.router.Ref(id); ok && now == ref {
					continue
				}
				gone++
			}
			for _, e := range w.router.Endpoints() {
				c := &e.Candidate
				if id, known := refs[c.Ref]; known && id != c.Endpoint.ID {
					w.failf("%v was %s and is %s", c.Ref, id, c.Endpoint.ID)
				}
				was, known := before[c.Endpoint.ID]
				if !e.Removed && (!known || was != c.Ref) {
					if _, seen := refs[c.Ref]; seen {
						w.failf("%s is new, and its handle %v is not", c.Endpoint.ID, c.Ref)
					}
					if c.Report != nil || c.InFlight != (endpick.InFlight{}) {
						w.failf("%s is new, and has a report %v and %+v in flight", c.Endpoint.ID, c.Report, c.InFlight)
					}
				}
				refs[c.Ref] = c.Endpoint.ID
			}
			if len(w.spy.gone) != gone {
				w.failf("%d endpoints have gone, and the spy has heard of %d", gone, len(w.spy.gone))
			}
		}
		w.closeAll()
	})
}
