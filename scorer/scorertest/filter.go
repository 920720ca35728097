package scorertest

import (
	"reflect"
	"slices"
	"testing"

	"github.com/endpick/endpick"
	"pgregory.net/rapid"
)

// RunFilter checks what every filter must do. It returns the beginning of the
// slice it was given, with candidates in their old order, and leaves the others
// unchanged behind them. It keeps the same candidates for the same input,
// whatever their order. It retains nothing of its input and reads no clock. It
// may be called concurrently. It keeps some candidates and not others at least
// once, unless an empty set is among the labels. newFilter returns a filter without history; it is
// called many times. Endpoints have no labels, or one of these sets; requests are as [Requests] draws
// them, of tenant-1, tenant-2 or none.
func RunFilter(t *testing.T, newFilter func(*testing.T) endpick.Filter, labels ...map[string]string) {
	t.Helper()
	checkFilter(suiteOf(t, labels...), newFilter)
}

const useKeep = "a filter moves what it keeps to the front of its argument, in the same order, and returns that part; endpick.Keep does so"

func checkFilter(s suite, newFilter func(*testing.T) endpick.Filter) {
	r := role{
		kind: "filter", method: "Filter", says: "Filter keeps", chance: "Request.Chance", draw: s.trial,
		fresh: func(t *testing.T) answering {
			f := newFilter(t)
			return func(req *endpick.Request, candidates []endpick.Candidate, _ []float64) any {
				ids := names(f.Filter(req, candidates))
				slices.Sort(ids)
				return ids
			}
		},
	}
	hears(s, newFilter)
	passed, narrowed := false, false
	s.property("partition", func(t *testing.T, rt *rapid.T) {
		passed = false
		narrowed = partitions(s.trial(rt), newFilter(t)) || narrowed
		passed = true
	})
	r.repeats(s)
	s.once("narrows", func(*testing.T) string {
		if !passed || narrowed || slices.ContainsFunc(s.labels, func(set map[string]string) bool { return len(set) == 0 }) {
			return ""
		}
		return "Filter has kept all candidates or none in every case, so that little was checked: give RunFilter the labels that it reads " +
			"(tenants are tenant-1 and tenant-2), or if it goes by something else, an empty set"
	})
	r.inAnyOrder(s)
	r.keepsNothing(s)
	r.needsNoClock(s)
	r.runsConcurrently(s)
}

// partitions checks that a filter moves candidates, and does nothing else to them. It reports
// whether the filter has kept some of them.
func partitions(c trial, stage endpick.Filter) bool {
	req, candidates := c.copied()
	var left []endpick.Candidate
	c.call("Filter", func() { left = stage.Filter(&req, candidates) })
	switch {
	case len(left) == 0: // no opinion
	case len(left) > len(candidates):
		c.failf("Filter returns %d of %d candidates: %s", len(left), len(candidates), useKeep)
	case &left[0] != &candidates[0]:
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
	places := make([]int, len(left))
	for i := range left {
		places[i] = slices.Index(names(c.candidates), left[i].Endpoint.ID)
	}
	if !slices.IsSorted(places) {
		c.failf("Filter returns %v: those that are kept stay in their order", names(left))
	}
	return len(left) > 0 && len(left) < len(candidates)
}

func times(cs []endpick.Candidate, id string) (n int) {
	for i := range cs {
		if cs[i].Endpoint.ID == id {
			n++
		}
	}
	return n
}
