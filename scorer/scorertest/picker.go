package scorertest

import (
	"math"
	"slices"
	"testing"

	"github.com/endpick/endpick"
	"pgregory.net/rapid"
)

// RunPicker checks what every picker must do. It returns an index into the
// candidates: that of the same endpoint whatever the order of candidates and however
// often it is called, and still that one if its score is raised. It changes neither
// request, candidates nor scores, keeps nothing of them and reads no clock. It may be
// called concurrently. newPicker returns a picker without history; it is called many
// times.
func RunPicker(t *testing.T, newPicker func(*testing.T) endpick.Picker, labels ...map[string]string) {
	t.Helper()
	checkPicker(suiteOf(t, labels...), newPicker)
}

// drawnScores generates n scores as pickers get them: finite, of any sign and
// magnitude, with ties.
func drawnScores(n int) *rapid.Generator[[]float64] {
	one := rapid.OneOf(rapid.Just(0.0), rapid.SampledFrom([]float64{0.25, 0.5, 1}), rapid.Float64Range(0, 1), rapid.Float64Range(-1e300, 1e300))
	return rapid.SliceOfN(one, n, n)
}

// outside is an index that is none of the candidates'.
type outside int

func checkPicker(s suite, newPicker func(*testing.T) endpick.Picker) {
	r := role{
		kind: "picker", method: "Pick", says: "Pick takes", chance: "Request.ChanceOf",
		draw: func(rt *rapid.T) trial {
			c := s.trial(rt)
			c.scores = drawnScores(len(c.candidates)).Draw(rt, "scores")
			return c
		},
		fresh: func(t *testing.T) answering {
			p := newPicker(t)
			return func(req *endpick.Request, candidates []endpick.Candidate, scores []float64) any {
				i := p.Pick(req, candidates, scores)
				if i < 0 || i >= len(candidates) {
					return outside(i)
				}
				return candidates[i].Endpoint.ID
			}
		},
	}
	hears(s, newPicker)
	s.property("index", func(t *testing.T, rt *rapid.T) {
		c := r.draw(rt)
		c.ask(r, r.fresh(t))
	})
	r.repeats(s)
	r.inAnyOrder(s)
	r.changesNothing(s, "a picker answers and no more")
	r.keepsNothing(s)
	s.property("higher", func(t *testing.T, rt *rapid.T) {
		c := r.draw(rt)
		stage := r.fresh(t)
		taken := c.ask(r, stage)
		raised := c
		raised.scores = slices.Clone(c.scores)
		i := slices.Index(names(c.candidates), taken.(string))
		raised.scores[i] += math.Abs(raised.scores[i]) + 1
		if now := raised.ask(r, stage); now != taken {
			c.failf("Pick takes %s, with scores %v, and %s once they are %v: a higher score is better, so that who is chosen with a low one is chosen with a high one",
				taken, c.scores, now, raised.scores)
		}
	})
	r.needsNoClock(s)
	r.runsConcurrently(s)
}
