package scorertest

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/endpick/endpick"
)

// Run checks what every scorer must do. It writes a finite number to every slot,
// the same one for the same input, and a candidate's score does not depend on
// its position. It changes neither request nor candidates, keeps nothing of them
// and reads no clock. It may be called concurrently. newScorer returns a scorer
// without history; it is called many times. Endpoints have no labels, or one of these sets.
func Run(t *testing.T, newScorer func(*testing.T) endpick.Scorer, labels ...map[string]string) {
	t.Helper()
	checkScorer(suiteOf(t, labels...), newScorer, math.Inf(-1), math.Inf(1))
}

// RunWeighted checks all that [Run] does, and that scores are within [0, 1],
// so that they can be combined with those of other scorers.
func RunWeighted(t *testing.T, newScorer func(*testing.T) endpick.Scorer, labels ...map[string]string) {
	t.Helper()
	checkScorer(suiteOf(t, labels...), newScorer, 0, 1)
}

func checkScorer(s suite, newScorer func(*testing.T) endpick.Scorer, least, most float64) {
	r := role{
		kind: "scorer", method: "Score", says: "Score gives", draw: s.trial,
		fresh: func(t *testing.T) answering { return scores(newScorer(t)) },
	}
	ask := func(c *trial, stage answering) []float64 { return c.ask(r, stage).([]float64) }
	s.property("scores", func(t *testing.T, rt *rapid.T) {
		c := r.draw(rt)
		scorer := newScorer(t)
		for i, v := range ask(&c, scores(scorer)) {
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
		if x, ok := scorer.(interface {
			Explain(req *endpick.Request, candidates []endpick.Candidate, dst []string)
		}); ok {
			req, candidates := c.copied()
			c.call("Explain", func() { x.Explain(&req, candidates, make([]string, len(candidates))) })
		}
	})
	s.property("order", func(t *testing.T, rt *rapid.T) {
		c := r.draw(rt)
		other := c.shuffled()
		stage := r.fresh(t)
		scores, again := ask(&c, stage), ask(&other, stage)
		if !alike(scores, ask(&c, stage)) {
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
		c := r.draw(rt)
		stage := r.fresh(t)
		first, again, twin := ask(&c, stage), ask(&c, stage), ask(&c, r.fresh(t))
		for i, v := range first {
			if !same(again[i], v) || !same(twin[i], v) {
				c.failf("Score gives %s %v, then %v, and another scorer without history %v: the same input has the same scores, "+
					"with chance from Request.Chance, and what is learned is learned by observers", c.candidates[i].Endpoint.ID, v, again[i], twin[i])
			}
		}
	})
	r.changesNothing(s, "a scorer writes to dst alone")
	r.keepsNothing(s)
	r.needsNoClock(s)
	r.runsConcurrently(s)
}

// scores answers with the scores, NaN for slots that were not written.
func scores(s endpick.Scorer) answering {
	return func(req *endpick.Request, candidates []endpick.Candidate, _ []float64) any {
		dst := make([]float64, len(candidates))
		for i := range dst {
			dst[i] = math.NaN()
		}
		s.Score(req, candidates, dst)
		return dst
	}
}
