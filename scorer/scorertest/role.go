package scorertest

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/endpick/endpick"
	"pgregory.net/rapid"
)

// answering calls a stage and returns its answer. The scores are for pickers.
type answering func(*endpick.Request, []endpick.Candidate, []float64) any

// role is what a kind of stage has in common with others.
type role struct {
	kind, method string
	says         string                     // begins a sentence with the answer: "Score gives"
	fresh        func(*testing.T) answering // of a stage without history
	draw         func(*rapid.T) trial       // its input
	chance       string                     // where it comes from
}

// ask returns the answer to the case, which a picker must have.
func (c *trial) ask(r role, stage answering) (a any) {
	req, candidates := c.copied()
	c.call(r.method, func() { a = stage(&req, candidates, slices.Clone(c.scores)) })
	if i, ok := a.(outside); ok {
		c.failf("Pick returns %d of %d candidates, with scores %v: it is an index into them", int(i), len(candidates), c.scores)
	}
	return a
}

// inAnyOrder checks that the answer does not depend on the order of candidates.
func (r role) inAnyOrder(s suite) {
	s.property("order", func(t *testing.T, rt *rapid.T) {
		c := r.draw(rt)
		other := c.shuffled()
		if one, two := c.ask(r, r.fresh(t)), other.ask(r, r.fresh(t)); !alike(one, two) {
			c.failf("%s %v of candidates in this order and %v in the order %v%s: it must not depend on the order of candidates",
				r.says, one, two, names(other.candidates), c.withScores())
		}
	})
}

// repeats checks that the answer is always the same, whatever else was asked at that moment. It is
// asked so often that what happens every tenth time is seen.
func (r role) repeats(s suite) {
	s.property("repeated", func(t *testing.T, rt *rapid.T) {
		c, other := r.draw(rt), r.draw(rt)
		other.req = other.req.At(c.req.Now(), 1, 1)
		stage, later := r.fresh(t), r.fresh(t)
		first := c.ask(r, stage)
		other.ask(r, stage)
		other.ask(r, later)
		for n, by := range slices.Concat([]answering{later}, slices.Repeat([]answering{stage}, 12)) {
			if again := c.ask(r, by); !alike(first, again) {
				c.failf("%s %v at first, and %v in call %d%s: the same input has the same answer, "+
					"with chance from %s, and what is learned is learned by observers", r.says, first, again, n+2, c.withScores(), r.chance)
			}
		}
	})
}

// byChance reports whether a stage, asked often enough, answers the same differently.
func (r role) byChance(ask func() any) bool {
	first := ask()
	for range 2000 {
		if !alike(first, ask()) {
			return true
		}
	}
	return false
}

// changesNothing checks that the stage only answers.
func (r role) changesNothing(s suite, why string) {
	s.property("input", func(t *testing.T, rt *rapid.T) {
		c := r.draw(rt)
		req, candidates := c.copied()
		passed := slices.Clone(c.scores)
		stage := r.fresh(t)
		c.call(r.method, func() { stage(&req, candidates, passed) })
		c.unchanged(r.method, &req, candidates, why)
		if !reflect.DeepEqual(c.scores, passed) {
			c.failf("Pick changed the scores %v to %v: a picker answers and no more", c.scores, passed)
		}
	})
}

// keepsNothing checks that the stage does not use the memory of an earlier call.
func (r role) keepsNothing(s suite) {
	s.property("kept", func(t *testing.T, rt *rapid.T) {
		c := r.draw(rt)
		stage := r.fresh(t)
		want := c.ask(r, r.fresh(t))
		c.scribbled(r.method, stage)
		if got := c.ask(r, stage); !alike(want, got) {
			if r.byChance(func() any { return c.ask(r, r.fresh(t)) }) {
				c.failf("%s now %v and now %v: chance comes from %s", r.says, want, got, r.chance)
			}
			c.failf("%s %v, and %v after the memory of an earlier call was used again: a stage keeps nothing that it was given", r.says, want, got)
		}
	})
}

// hears checks that a stage which wraps another of its kind lets that hear of requests.
func hears[S any](s suite, fresh func(*testing.T) S) {
	s.once("hears", func(t *testing.T) string {
		stage := fresh(t)
		v := reflect.Indirect(reflect.ValueOf(stage))
		if v.Kind() != reflect.Struct || listens(stage) {
			return ""
		}
		for i := range v.NumField() {
			f := v.Field(i)
			if f.Kind() == reflect.Interface {
				f = f.Elem()
			}
			if f.IsValid() && !f.IsZero() {
				if inner, ok := reflect.Zero(f.Type()).Interface().(S); ok && listens(inner) {
					return fmt.Sprintf("%T wraps %T, which learns from requests, and hears of none: "+
						"give the wrapper a method Observer() any that returns it", stage, inner)
				}
			}
		}
		return ""
	})
}

// listens reports whether a router lets a stage, or what it returns from Observer, hear of requests.
func listens(stage any) bool {
	switch stage.(type) {
	case endpick.RoutedObserver, endpick.FirstTokenObserver, endpick.DoneObserver, endpick.EndpointObserver,
		interface{ Observer() any }:
		return true
	}
	return false
}

// needsNoClock finds stages that read a clock.
func (r role) needsNoClock(s suite) {
	s.once("clock", func(t *testing.T) string { return r.dayLater(t, 20) })
}

// dayLater checks that, after a day without requests, a stage answers so many examples
// like one from the day before, and like a new one.
func (r role) dayLater(t *testing.T, examples int) string {
	return inBubble(t, r.method, func(t *testing.T) string {
		for i := range examples {
			req, candidates := example(i)
			ask := func(stage answering) any {
				return fmt.Sprint(stage(&req, slices.Clone(candidates), make([]float64, len(candidates))))
			}
			one, other := r.fresh(t), r.fresh(t)
			first := ask(one)
			time.Sleep(31*time.Hour + 13*time.Minute + 17*time.Second + 1) // another hour, and no multiple of few seconds
			for _, stage := range []answering{other, r.fresh(t)} {
				if again := ask(stage); first != again {
					if r.byChance(func() any { return ask(r.fresh(t)) }) {
						return fmt.Sprintf("%s gives now %v and now %v: chance comes from %s", r.method, first, again, r.chance)
					}
					return later(r.method, first, again)
				}
			}
		}
		return ""
	})
}

// runsConcurrently lets the race detector see calls from several goroutines.
func (r role) runsConcurrently(s suite) {
	s.once("concurrency", func(t *testing.T) string {
		stage := r.fresh(t)
		return concurrently(func(i int) {
			req, candidates := example(i)
			scores := drawnScores(len(candidates)).Example(i)
			for range 100 {
				stage(&req, slices.Clone(candidates), scores)
			}
		})
	})
}

// alike reports whether two answers are the same.
func alike(a, b any) bool {
	switch x := a.(type) {
	case scored:
		return x.String() == b.(scored).String() // NaN is NaN
	case admission:
		return (x.err == nil) == (b.(admission).err == nil)
	}
	return reflect.DeepEqual(a, b)
}

// copied returns the input for a stage that may change it, with endpoints and reports
// of its own. As in a router, other candidates follow in the same array.
func (c *trial) copied() (endpick.Request, []endpick.Candidate) {
	req := c.req
	req.Blocks = slices.Clone(req.Blocks)
	all := append(copies(c.candidates), removed()...)
	return req, all[:len(c.candidates)]
}

// copies returns deep copies of candidates.
func copies(candidates []endpick.Candidate) []endpick.Candidate {
	all := slices.Clone(candidates)
	for i := range all {
		c := &all[i]
		e := *c.Endpoint
		e.Models, e.Adapters, e.Labels = slices.Clone(e.Models), slices.Clone(e.Adapters), maps.Clone(e.Labels)
		if c.Endpoint = &e; c.Report != nil {
			l := *c.Report
			l.Adapters = slices.Clone(l.Adapters)
			c.Report = &l
		}
	}
	return all
}

// removed are candidates that earlier filters have removed.
func removed() []endpick.Candidate {
	return []endpick.Candidate{
		{Endpoint: &endpick.Endpoint{ID: "removed-0"}, Ref: endpick.EndpointRef{Slot: 1000, Generation: 1}},
		{Endpoint: &endpick.Endpoint{ID: "removed-1"}, Ref: endpick.EndpointRef{Slot: 1001, Generation: 1}},
	}
}

// unchanged fails if a stage has changed its input.
func (c *trial) unchanged(what string, req *endpick.Request, candidates []endpick.Candidate, why string) {
	if !reflect.DeepEqual(c.req, *req) {
		c.failf("%s changed the request: %s.\nAfter it: %s", what, why, showRequest(req))
	}
	if is := names(candidates[:len(c.candidates)]); !slices.Equal(is, names(c.candidates)) {
		c.failf("%s moved or replaced candidates: %s.\nAfter it: %v", what, why, is)
	}
	for i := range c.candidates {
		c.same(what, &c.candidates[i], &candidates[i], why)
	}
	c.untouched(what, candidates)
}

// same fails if a stage has changed a candidate, or what it points to.
func (c *trial) same(what string, was, is *endpick.Candidate, why string) {
	id := was.Endpoint.ID
	if is.Endpoint != nil && is.Endpoint.ID == id && !reflect.DeepEqual(was.Endpoint, is.Endpoint) {
		c.failf("%s changed the endpoint of %s, which all requests share: %s.\nAfter it: %s", what, id, why, showEndpoint(is.Endpoint))
	}
	if was.Report != nil && is.Report != nil && !reflect.DeepEqual(was.Report, is.Report) {
		c.failf("%s changed the report of %s, which all requests share: %s.\nAfter it: %s", what, id, why, showReport(is.Report))
	}
	if !reflect.DeepEqual(was, is) {
		c.failf("%s changed the candidate %s: %s.\nAfter it: %s", what, id, why, showCandidate(is))
	}
}

// untouched fails if a stage has written behind its candidates.
func (c *trial) untouched(what string, candidates []endpick.Candidate) {
	if !reflect.DeepEqual(removed(), candidates[len(c.candidates):len(c.candidates)+len(removed())]) {
		c.failf("%s wrote behind the candidates it was given: there are those that were removed before, which receipts show and the next request finds "+
			"(an append to the slice does that)", what)
	}
}

// scribbled calls a stage, and then overwrites the memory it was given, as a
// router does.
func (c *trial) scribbled(method string, stage answering) {
	req, candidates := c.copied()
	passed := slices.Clone(c.scores)
	c.call(method, func() { stage(&req, candidates, passed) })
	overwrite(req.Blocks)
	clear(passed)
	req = endpick.Request{Model: "another", Session: "another", InputTokens: 7}
	for i := range candidates {
		candidates[i] = endpick.Candidate{Endpoint: &endpick.Endpoint{ID: "another"}, Waiting: 1e6, KVUsage: 1}
	}
}

func later(what string, first, again any) string {
	return fmt.Sprintf("%s gives %v, and a day later, for the same Request.Now, %v: the time comes from Request.Now, not from time.Now", what, first, again)
}

// inBubble runs f in a synctest bubble, where time passes at once.
func inBubble(t *testing.T, what string, f func(*testing.T) string) (fault string) {
	synctest.Test(t, func(t *testing.T) {
		defer func() {
			if v := recover(); v != nil {
				fault = fmt.Sprintf("%s panicked: %v%s", what, v, origin())
			}
		}()
		fault = f(t)
	})
	return fault
}
