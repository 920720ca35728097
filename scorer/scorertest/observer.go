package scorertest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"pgregory.net/rapid"
)

// statuses are the ways in which a host ends requests.
var statuses = []endpick.Status{endpick.Completed, endpick.Failed, endpick.Canceled, endpick.Refused}

// RunObserver checks what every observer must do (RoutedObserver, FirstTokenObserver,
// DoneObserver or EndpointObserver): whatever happens to requests, it does not panic, does
// not change what it is passed, and keeps none of it beyond the call, because that memory
// is reused. It observes requests that end before their first token, leases that are never
// closed, endpoints that are removed with requests on them and come back, clocks that are
// set back, requests that another router has sent, and many requests at the same time.
// newObserver returns an observer without history; it is called many times.
func RunObserver(t *testing.T, newObserver func(*testing.T) any) {
	t.Helper()
	checkObserver(suiteOf(t), newObserver)
}

func checkObserver(s suite, newObserver func(*testing.T) any) {
	s.once("listens", func(t *testing.T) string {
		switch o := newObserver(t); o.(type) {
		case endpick.RoutedObserver, endpick.FirstTokenObserver, endpick.DoneObserver, endpick.EndpointObserver:
			return ""
		default:
			return fmt.Sprintf("%T is none of the four observers: a method with another signature is not called", o)
		}
	})
	s.property("events", func(t *testing.T, rt *rapid.T) {
		a := &audience{watched: &watched{observer: newObserver(t)}, now: time.Unix(1e6, 0)}
		a.router = routerWith(rt, endpick.Config{Policy: observedBy(a.watched), Clock: func() time.Time { return a.now }}, libraryIDs[:2]...)
		rt.Repeat(map[string]func(*rapid.T){
			"route": a.route, "sent elsewhere": a.mirror, "done": a.done, "churn": a.churn, "time": a.pass, "more time": a.pass,
			"first token": func(rt *rapid.T) {
				l := a.lease(rt)
				a.did("a first token comes")
				l.FirstToken()
			},
			"tokens": func(rt *rapid.T) {
				l := a.lease(rt)
				a.did("three tokens come")
				l.Tokens(3)
			},
			"silence": func(*rapid.T) {
				a.did("an hour without a word: who is still there is taken for lost")
				a.now = a.now.Add(time.Hour)
				a.router.Sweep(a.now)
			},
			"": func(rt *rapid.T) {
				if a.watched.fault != "" {
					a.failf(rt, "%s", a.watched.fault)
				}
			},
		})
	})
	s.once("concurrency", func(t *testing.T) string {
		r := routerWith(t, endpick.Config{Policy: observedBy(newObserver(t))}, libraryIDs[:2]...)
		return concurrentRequests(r, "", endpick.Endpoint{ID: "server-1"})
	})
}

// audience is a router with an observer, and what has happened to its requests.
type audience struct {
	story
	watched *watched
	router  *endpick.Router
	now     time.Time
	open    []endpick.Lease
}

func (a *audience) route(rt *rapid.T) {
	req := drawRequest(rt, "request")
	req.Adapter = ""
	req.Blocks = prompt(rapid.Uint64Range(0, families-1).Draw(rt, "family"), rapid.IntRange(0, 5).Draw(rt, "blocks"))
	a.did("%s is routed", showRequest(&req))
	l, err := a.router.Route(req)
	if errors.As(err, new(*endpick.NoEndpointError)) {
		return
	}
	a.open = append(a.open, l)
	overwrite(req.Blocks)
}

func (a *audience) mirror(rt *rapid.T) {
	req := drawRequest(rt, "mirrored")
	req.Model, req.Adapter = "", ""
	req.Adopted = &endpick.Adopted{Endpoint: rapid.SampledFrom(libraryIDs[:2]).Draw(rt, "endpoint"), Mirrored: true}
	a.did("another router has sent %s", showRequest(&req))
	if l, err := a.router.Route(req); err == nil {
		a.open = append(a.open, l)
	}
}

// lease draws one of the leases, open or closed.
func (a *audience) lease(rt *rapid.T) endpick.Lease {
	if len(a.open) == 0 {
		rt.Skip("no lease yet")
	}
	return a.open[rapid.IntRange(0, len(a.open)-1).Draw(rt, "lease")]
}

func (a *audience) done(rt *rapid.T) {
	l := a.lease(rt)
	o := endpick.Outcome{Status: statuses[rapid.IntRange(0, len(statuses)-1).Draw(rt, "status")], OutputTokens: rapid.IntRange(0, 100).Draw(rt, "output")}
	if o.HasCachedTokens = rapid.Bool().Draw(rt, "says what was cached"); o.HasCachedTokens {
		o.CachedTokens = rapid.IntRange(0, 1<<20).Draw(rt, "cached")
	}
	a.did("a request ends: %s", showOutcome(&o))
	l.Done(o)
}

func (a *audience) churn(rt *rapid.T) {
	id := rapid.SampledFrom(libraryIDs[:2]).Draw(rt, "endpoint")
	if a.router.Remove(id) == nil {
		a.did("%s goes", id)
	} else if a.router.Add(endpick.Endpoint{ID: id}) == nil {
		a.did("%s comes", id)
	}
}

func (a *audience) pass(rt *rapid.T) {
	d := rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, -time.Second, -time.Hour}).Draw(rt, "time")
	a.did("the clock moves by %v", d)
	a.now = a.now.Add(d)
}

// observedBy is a policy whose only stage adds the observer.
func observedBy(observer any) endpick.Policy {
	return endpick.Policy{Scorers: []endpick.Weighted{{Scorer: carrier{observer}, Weight: 1}}}
}

// carrier is a stage that adds an observer to a policy.
type carrier struct{ observer any }

func (carrier) Score(_ *endpick.Request, _ []endpick.Candidate, dst []float64) { clear(dst) }

func (c carrier) Observer() any { return c.observer }

// watched wraps an observer. It passes copies to it, which it compares
// afterwards, and overwrites.
type watched struct {
	observer any
	fault    string
}

func (w *watched) tell(what string, e *endpick.Event, o *endpick.Outcome, f func(*endpick.Event, *endpick.Outcome)) {
	one, two := copyEvent(e), copyEvent(e)
	var oneOutcome, twoOutcome *endpick.Outcome
	if o != nil {
		a, b := *o, *o
		a.Blocks, b.Blocks = slices.Clone(o.Blocks), slices.Clone(o.Blocks)
		oneOutcome, twoOutcome = &a, &b
	}
	w.guard(what, func() { f(one, oneOutcome) })
	if w.fault == "" && (!reflect.DeepEqual(one, two) || !reflect.DeepEqual(oneOutcome, twoOutcome)) {
		w.fault = what + " changed what it was told, which others hear of after it"
	}
	overwrite(one.Request.Blocks)
	*one.Request, *one.Candidate = endpick.Request{}, endpick.Candidate{}
	clear(one.Candidates)
	*one = endpick.Event{}
}

func copyEvent(e *endpick.Event) *endpick.Event {
	c, req, candidate := *e, *e.Request, *e.Candidate
	req.Blocks = slices.Clone(req.Blocks)
	c.Request, c.Candidate, c.Candidates = &req, &copies([]endpick.Candidate{candidate})[0], copies(e.Candidates)
	return &c
}

func (w *watched) guard(what string, f func()) {
	defer func() {
		if v := recover(); v != nil && w.fault == "" {
			w.fault = fmt.Sprintf("%s panicked: %v%s. (What it is told is valid during the call alone.)", what, v, origin())
		}
	}()
	f()
}

func (w *watched) Routed(e *endpick.Event) {
	if o, ok := w.observer.(endpick.RoutedObserver); ok {
		w.tell("Routed", e, nil, func(e *endpick.Event, _ *endpick.Outcome) { o.Routed(e) })
	}
}

func (w *watched) FirstToken(e *endpick.Event) {
	if o, ok := w.observer.(endpick.FirstTokenObserver); ok {
		w.tell("FirstToken", e, nil, func(e *endpick.Event, _ *endpick.Outcome) { o.FirstToken(e) })
	}
}

func (w *watched) Done(e *endpick.Event, outcome *endpick.Outcome) {
	if o, ok := w.observer.(endpick.DoneObserver); ok {
		w.tell("Done", e, outcome, o.Done)
	}
}

func (w *watched) EndpointRemoved(ref endpick.EndpointRef) {
	if o, ok := w.observer.(endpick.EndpointObserver); ok {
		w.guard("EndpointRemoved", func() { o.EndpointRemoved(ref) })
	}
}
