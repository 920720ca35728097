package scorertest

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/endpick/endpick"
)

const mostCandidates = 16

// Run checks what every scorer must do. It writes a finite number to every slot,
// the same one for the same input, and a candidate's score does not depend on
// its position. It changes neither request nor candidates, keeps nothing of them
// and reads no clock. It may be called concurrently. newScorer returns a scorer
// without history; it is called many times.
func Run(t *testing.T, newScorer func(*testing.T) endpick.Scorer) {
	t.Helper()
	checkScorer(suiteOf(t), newScorer, math.Inf(-1), math.Inf(1))
}

// RunWeighted checks all that [Run] does, and that scores are within [0, 1],
// so that they can be combined with those of other scorers.
func RunWeighted(t *testing.T, newScorer func(*testing.T) endpick.Scorer) {
	t.Helper()
	checkScorer(suiteOf(t), newScorer, 0, 1)
}

func checkScorer(s suite, newScorer func(*testing.T) endpick.Scorer, least, most float64) {
	s.property("scores", func(t *testing.T, rt *rapid.T) {
		c := draw(rt, mostCandidates)
		for i, v := range c.score(newScorer(t)) {
			id := c.candidates[i].Endpoint.ID
			switch {
			case math.IsNaN(v):
				c.failf("Score left the slot of %s as it was, or wrote NaN: every slot of dst gets a finite number", id)
			case math.IsInf(v, 0):
				c.failf("Score gives %s %v: scores are finite", id, v)
			case v < least || v > most:
				c.failf("Score gives %s %v: scores that are combined by weight are within [%v, %v]", id, v, least, most)
			}
		}
	})
	s.property("order", func(t *testing.T, rt *rapid.T) {
		c := draw(rt, mostCandidates)
		other := c.shuffled()
		stage := newScorer(t)
		scores, again := c.score(stage), other.score(stage)
		if !slices.EqualFunc(scores, c.score(stage), same) {
			return // the order is not the cause; "repeated" reports it
		}
		for i, v := range again {
			id := other.candidates[i].Endpoint.ID
			if want := scores[slices.Index(names(c.candidates), id)]; !same(v, want) {
				c.failf("Score gives %s %v in this order and %v in the order %v: it must not depend on the order of candidates", id, want, v, names(other.candidates))
			}
		}
	})
	s.property("repeated", func(t *testing.T, rt *rapid.T) {
		c := draw(rt, mostCandidates)
		stage := newScorer(t)
		first, again, twin := c.score(stage), c.score(stage), c.score(newScorer(t))
		for i, v := range first {
			if !same(again[i], v) || !same(twin[i], v) {
				c.failf("Score gives %s %v, then %v, and another scorer without history %v: the same input has the same scores, "+
					"with chance from Request.Chance, and what is learned is learned by observers", c.candidates[i].Endpoint.ID, v, again[i], twin[i])
			}
		}
	})
	s.property("input", func(t *testing.T, rt *rapid.T) {
		c := draw(rt, mostCandidates)
		req, candidates := c.copied()
		stage := newScorer(t)
		c.call("Score", func() { stage.Score(&req, candidates, make([]float64, len(candidates))) })
		c.unchanged("Score", &req, candidates, "a scorer writes to dst alone")
	})
	s.property("kept", func(t *testing.T, rt *rapid.T) {
		c := draw(rt, mostCandidates)
		stage := newScorer(t)
		want := c.score(newScorer(t))
		c.scribbled("Score", func(req *endpick.Request, candidates []endpick.Candidate) {
			stage.Score(req, candidates, make([]float64, len(candidates)))
		})
		if got := c.score(stage); !slices.EqualFunc(want, got, same) {
			c.failf("Score gives %v, and %v after the memory of an earlier call was used again: a stage keeps nothing that it was given", want, got)
		}
	})
	s.once("clock", func(t *testing.T) string {
		return clockless(t, "Score", func(t *testing.T) answering {
			scorer := newScorer(t)
			return func(req *endpick.Request, candidates []endpick.Candidate) any {
				dst := make([]float64, len(candidates))
				scorer.Score(req, candidates, dst)
				return dst
			}
		})
	})
	s.once("concurrency", func(t *testing.T) string {
		stage := newScorer(t)
		return concurrently(func(i int) {
			req, candidates := example(i)
			dst := make([]float64, len(candidates))
			for range 100 {
				stage.Score(&req, candidates, dst)
			}
		})
	})
}

// score returns the scores, NaN for slots that were not written.
func (c *trial) score(s endpick.Scorer) []float64 {
	req, candidates := c.copied()
	dst := make([]float64, len(candidates))
	for i := range dst {
		dst[i] = math.NaN()
	}
	c.call("Score", func() { s.Score(&req, candidates, dst) })
	return dst
}

// same is equality, except that NaN equals NaN.
func same(a, b float64) bool { return a == b || a != a && b != b }

// alike reports whether two answers are the same.
func alike(a, b any) bool {
	if scores, ok := a.([]float64); ok {
		return slices.EqualFunc(scores, b.([]float64), same)
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
		{Endpoint: &endpick.Endpoint{ID: "removed-0"}, Ref: endpick.Ref{Slot: 1000, Generation: 1}},
		{Endpoint: &endpick.Endpoint{ID: "removed-1"}, Ref: endpick.Ref{Slot: 1001, Generation: 1}},
	}
}

// unchanged fails if a stage has changed its input.
func (c *trial) unchanged(what string, req *endpick.Request, candidates []endpick.Candidate, why string) {
	if !reflect.DeepEqual(c.req, *req) {
		c.failf("%s changed the request: %s.\nAfter it: %s", what, why, showRequest(req))
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
func (c *trial) scribbled(what string, f func(*endpick.Request, []endpick.Candidate)) {
	req, candidates := c.copied()
	c.call(what, func() { f(&req, candidates) })
	for i := range req.Blocks {
		req.Blocks[i] = ^req.Blocks[i]
	}
	req = endpick.Request{Model: "another", Session: "another", InputTokens: 7}
	for i := range candidates {
		candidates[i] = endpick.Candidate{Endpoint: &endpick.Endpoint{ID: "another"}, Waiting: 1e6, KVUsage: 1}
	}
}

// answering calls a stage, and returns its answer.
type answering func(*endpick.Request, []endpick.Candidate) any

// clockless finds stages that read a clock: after a day without requests, a stage must
// answer like one from the day before, and like a new one.
func clockless(t *testing.T, what string, fresh func(*testing.T) answering) string {
	return inBubble(t, what, func(t *testing.T) string {
		for i := range 20 {
			req, candidates := example(i)
			one, other := fresh(t), fresh(t)
			first := one(&req, slices.Clone(candidates))
			time.Sleep(24 * time.Hour)
			for _, s := range []answering{other, fresh(t)} {
				if again := s(&req, slices.Clone(candidates)); !alike(first, again) {
					return later(what, first, again)
				}
			}
		}
		return ""
	})
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
