package scorertest

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/endpick/endpick"
	"pgregory.net/rapid"
)

// Run checks what every scorer must do. It writes a finite number to every slot,
// the same one for the same input, and a candidate's score does not depend on
// its position. It changes neither request nor candidates, keeps nothing of them
// and reads no clock. It may be called concurrently. newScorer returns a scorer
// without history; it is called many times. Endpoints have no labels, or one of these sets: a scorer that
// reads others is checked without. That it treats those without report or prediction as average ones is
// not checked.
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
		kind: "scorer", method: "Score", says: "Score gives", chance: "Request.Chance", draw: s.trial,
		fresh: func(t *testing.T) answering { return scores(newScorer(t)) },
	}
	hears(s, newScorer)
	s.property("scores", func(t *testing.T, rt *rapid.T) {
		c := r.draw(rt)
		scorer := newScorer(t)
		for i, v := range c.ask(r, scores(scorer)).(scored).dst {
			id := c.candidates[i].Endpoint.ID
			switch {
			case math.Float64bits(v) == math.Float64bits(unwritten):
				c.failf("Score left the slot of %s as it was: every slot of dst gets a finite number", id)
			case math.IsNaN(v), math.IsInf(v, 0):
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
	r.repeats(s)
	r.inAnyOrder(s)
	r.changesNothing(s, "a scorer writes to dst alone")
	r.keepsNothing(s)
	r.needsNoClock(s)
	r.runsConcurrently(s)
}

// unwritten is a NaN that no calculation gives.
var unwritten = math.Float64frombits(0x7ff8_0000_0bad_0bad)

// scored are the scores of candidates, unwritten where a slot was left as it was.
type scored struct {
	ids []string
	dst []float64 // as the scorer has it, which may write to it later
}

func (s scored) String() string {
	var w words
	for i, id := range s.ids {
		w.add(true, "%s %v", id, s.dst[i])
	}
	slices.Sort(w)
	return strings.Join(w, ", ")
}

func scores(s endpick.Scorer) answering {
	return func(req *endpick.Request, candidates []endpick.Candidate, _ []float64) any {
		dst := slices.Repeat([]float64{unwritten}, len(candidates))
		s.Score(req, candidates, dst)
		return scored{names(candidates), dst}
	}
}
