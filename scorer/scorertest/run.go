package scorertest

import (
	"fmt"
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

// Run checks what holds for every scorer: it writes every slot with a finite
// number, the same one for the same input, and a candidate's score does not
// depend on its place; it changes neither request nor candidates, keeps nothing
// of them and reads no clock; it may be called concurrently. newScorer returns a
// scorer without history; it is called many times.
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
		for i, v := range again {
			id := other.candidates[i].Endpoint.ID
			if want := scores[slices.Index(names(c.candidates), id)]; !same(v, want) {
				c.failf("Score gives %s %v in this order and %v in the order %v: a candidate's place says nothing about it", id, want, v, names(other.candidates))
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
		return clockless(t, "Score", func(t *testing.T, req *endpick.Request, candidates []endpick.Candidate) any {
			dst := make([]float64, len(candidates))
			newScorer(t).Score(req, candidates, dst)
			return dst
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

// score returns the scores, NaN where none was written.
func (c *trial) score(s endpick.Scorer) []float64 {
	req, candidates := c.copied()
	dst := make([]float64, len(candidates))
	for i := range dst {
		dst[i] = math.NaN()
	}
	c.call("Score", func() { s.Score(&req, candidates, dst) })
	return dst
}

// same is equality to which one slot that was not written is like another.
func same(a, b float64) bool { return a == b || a != a && b != b }

// copied returns the input for a stage that may change it.
func (c *trial) copied() (endpick.Request, []endpick.Candidate) {
	req := c.req
	req.Blocks = slices.Clone(req.Blocks)
	return req, slices.Clone(c.candidates)
}

// unchanged fails if a stage has changed what it was given.
func (c *trial) unchanged(what string, req *endpick.Request, candidates []endpick.Candidate, why string) {
	if !reflect.DeepEqual(c.req, *req) {
		c.failf("%s changed the request: %s.\nAfter it: %s", what, why, showRequest(req))
	}
	for i := range c.candidates {
		if !reflect.DeepEqual(c.candidates[i], candidates[i]) {
			c.failf("%s changed the candidate %s: %s.\nAfter it: %s", what, c.candidates[i].Endpoint.ID, why, showCandidate(&candidates[i]))
		}
	}
}

// scribbled calls a stage and then uses the memory it was given for something
// else, as a router does.
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

// clockless finds stages that read a clock: in a bubble in which a day has
// passed, the same input must give the same.
func clockless(t *testing.T, what string, f func(*testing.T, *endpick.Request, []endpick.Candidate) any) (fault string) {
	synctest.Test(t, func(t *testing.T) {
		defer func() {
			if v := recover(); v != nil {
				fault = fmt.Sprintf("%s panicked: %v%s", what, v, origin())
			}
		}()
		for i := range 20 {
			req, candidates := example(i)
			first := f(t, &req, slices.Clone(candidates))
			time.Sleep(24 * time.Hour)
			if again := f(t, &req, slices.Clone(candidates)); !reflect.DeepEqual(first, again) {
				fault = fmt.Sprintf("%s gives %v, and a day later, for the same Request.Now, %v: the time comes from Request.Now, not from time.Now", what, first, again)
				return
			}
		}
	})
	return fault
}
