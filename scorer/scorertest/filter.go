package scorertest

import (
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/endpick/endpick"
)

// RunFilter checks what every filter must do. It returns the beginning of the
// slice it was given, with candidates in their old order, and leaves the others
// unchanged behind them. It keeps the same candidates for the same input,
// whatever their order. It retains nothing of its input and reads no clock. It
// may be called concurrently. newFilter returns a filter without history; it is
// called many times.
func RunFilter(t *testing.T, newFilter func(*testing.T) endpick.Filter) {
	t.Helper()
	checkFilter(suiteOf(t), newFilter)
}

const useKeep = "a filter moves what it keeps to the front of its argument, in the same order, and returns that part; endpick.Keep does so"

func checkFilter(s suite, newFilter func(*testing.T) endpick.Filter) {
	s.property("partition", func(t *testing.T, rt *rapid.T) {
		c := draw(rt, mostCandidates)
		stage := newFilter(t)
		req, candidates := c.copied()
		var kept []endpick.Candidate
		c.call("Filter", func() { kept = stage.Filter(&req, candidates) })
		switch {
		case len(kept) == 0: // no opinion
		case len(kept) > len(candidates):
			c.failf("Filter returns %d of %d candidates: %s", len(kept), len(candidates), useKeep)
		case &kept[0] != &candidates[0]:
			c.failf("Filter returns a slice that is not the front of its argument: %s", useKeep)
		}
		for i := range candidates {
			if candidates[i].Endpoint == nil || find(c.candidates, candidates[i].Endpoint.ID) == nil {
				c.failf("Filter left something at index %d that is not one of the candidates: %s (slices.DeleteFunc clears what it removes)", i, useKeep)
			}
		}
		for i := range c.candidates {
			was := &c.candidates[i]
			if n := times(candidates, was.Endpoint.ID); n != 1 {
				c.failf("%s is there %d times after Filter: %s", was.Endpoint.ID, n, useKeep)
			}
			c.same("Filter", was, find(candidates, was.Endpoint.ID), "a filter moves candidates and changes none")
		}
		c.untouched("Filter", candidates)
		if !reflect.DeepEqual(req, c.req) {
			c.failf("Filter changed the request, which is not its own.\nAfter it: %s", showRequest(&req))
		}
		places := make([]int, len(kept))
		for i := range kept {
			places[i] = slices.Index(names(c.candidates), kept[i].Endpoint.ID)
		}
		if !slices.IsSorted(places) {
			c.failf("Filter returns %v: those that are kept stay in their order", names(kept))
		}
	})
	s.property("order", func(t *testing.T, rt *rapid.T) {
		c := draw(rt, mostCandidates)
		other := c.shuffled()
		stage := newFilter(t)
		kept, again := c.kept(stage), other.kept(stage)
		if !slices.Equal(kept, again) {
			c.failf("Filter keeps %v of candidates in this order and %v in the order %v: it must not depend on the order of candidates", kept, again, names(other.candidates))
		}
	})
	s.property("repeated", func(t *testing.T, rt *rapid.T) {
		c := draw(rt, mostCandidates)
		stage := newFilter(t)
		first, again, twin := c.kept(stage), c.kept(stage), c.kept(newFilter(t))
		if !slices.Equal(first, again) || !slices.Equal(first, twin) {
			c.failf("Filter keeps %v, then %v, and another filter without history %v: the same input has the same answer, "+
				"with chance from Request.Chance, and what is learned is learned by observers", first, again, twin)
		}
	})
	s.property("kept", func(t *testing.T, rt *rapid.T) {
		c := draw(rt, mostCandidates)
		stage := newFilter(t)
		want := c.kept(newFilter(t))
		c.scribbled("Filter", func(req *endpick.Request, candidates []endpick.Candidate) { stage.Filter(req, candidates) })
		if got := c.kept(stage); !slices.Equal(want, got) {
			c.failf("Filter keeps %v, and %v after the memory of an earlier call was used again: a stage keeps nothing that it was given", want, got)
		}
	})
	s.once("clock", func(t *testing.T) string {
		return clockless(t, "Filter", func(t *testing.T) answering {
			filter := newFilter(t)
			return func(req *endpick.Request, candidates []endpick.Candidate) any {
				return names(filter.Filter(req, candidates))
			}
		})
	})
	s.once("concurrency", func(t *testing.T) string {
		stage := newFilter(t)
		return concurrently(func(i int) {
			req, candidates := example(i)
			for range 100 {
				stage.Filter(&req, candidates)
			}
		})
	})
}

// kept returns the IDs that a filter keeps, sorted.
func (c *trial) kept(f endpick.Filter) (ids []string) {
	req, candidates := c.copied()
	c.call("Filter", func() { ids = names(f.Filter(&req, candidates)) })
	slices.Sort(ids)
	return ids
}

func times(cs []endpick.Candidate, id string) (n int) {
	for i := range cs {
		if cs[i].Endpoint.ID == id {
			n++
		}
	}
	return n
}
