package scorertest

import (
	"math"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/endpick/endpick"
)

// RunPicker checks what every picker must do. It returns an index into the
// candidates: that of the same endpoint whatever the order of candidates and however
// often it is called, and still that one if its score is raised. It changes neither
// request, candidates nor scores, keeps nothing of them and reads no clock. It may be
// called concurrently. newPicker returns a picker without history; it is called many
// times.
func RunPicker(t *testing.T, newPicker func(*testing.T) endpick.Picker) {
	t.Helper()
	checkPicker(suiteOf(t), newPicker)
}

// Scores generates n scores as pickers get them: finite, of any sign and
// magnitude, with ties.
func Scores(n int) *rapid.Generator[[]float64] {
	one := rapid.OneOf(rapid.Just(0.0), rapid.SampledFrom([]float64{0.25, 0.5, 1}), rapid.Float64Range(0, 1), rapid.Float64Range(-1e300, 1e300))
	return rapid.SliceOfN(one, n, n)
}

func checkPicker(s suite, newPicker func(*testing.T) endpick.Picker) {
	s.property("index", func(t *testing.T, rt *rapid.T) {
		c, scores := drawScored(rt)
		c.picked(newPicker(t), scores)
	})
	s.property("order", func(t *testing.T, rt *rapid.T) {
		c, scores := drawScored(rt)
		other := c.shuffled()
		moved := make([]float64, len(scores))
		for i, id := range names(other.candidates) {
			moved[i] = scores[slices.Index(names(c.candidates), id)]
		}
		stage := newPicker(t)
		if one, two := c.picked(stage, scores), other.picked(stage, moved); one != two {
			c.failf("Pick takes %s of candidates in this order and %s in the order %v, with scores %v: "+
				"the choice must not depend on the order of candidates; break ties with Request.ChanceOf", one, two, names(other.candidates), scores)
		}
	})
	s.property("repeated", func(t *testing.T, rt *rapid.T) {
		c, scores := drawScored(rt)
		stage := newPicker(t)
		first, again, twin := c.picked(stage, scores), c.picked(stage, scores), c.picked(newPicker(t), scores)
		if first != again || first != twin {
			c.failf("Pick takes %s, then %s, and another picker without history %s, with scores %v: the same input has the same answer, "+
				"with chance from Request.ChanceOf, and what is learned is learned by observers", first, again, twin, scores)
		}
	})
	s.property("input", func(t *testing.T, rt *rapid.T) {
		c, scores := drawScored(rt)
		req, candidates := c.copied()
		passed := slices.Clone(scores)
		stage := newPicker(t)
		c.call("Pick", func() { stage.Pick(&req, candidates, passed) })
		c.unchanged("Pick", &req, candidates, "a picker answers and no more")
		if !reflect.DeepEqual(scores, passed) {
			c.failf("Pick changed the scores %v to %v: a picker answers and no more", scores, passed)
		}
	})
	s.property("kept", func(t *testing.T, rt *rapid.T) {
		c, scores := drawScored(rt)
		stage := newPicker(t)
		want := c.picked(newPicker(t), scores)
		c.scribbled("Pick", func(req *endpick.Request, candidates []endpick.Candidate) {
			passed := slices.Clone(scores)
			stage.Pick(req, candidates, passed)
			clear(passed)
		})
		if got := c.picked(stage, scores); want != got {
			c.failf("Pick takes %s, and %s after the memory of an earlier call was used again: a stage keeps nothing that it was given", want, got)
		}
	})
	s.property("higher", func(t *testing.T, rt *rapid.T) {
		c, scores := drawScored(rt)
		stage := newPicker(t)
		taken := c.picked(stage, scores)
		raised := slices.Clone(scores)
		i := slices.Index(names(c.candidates), taken)
		raised[i] += math.Abs(raised[i]) + 1
		if now := c.picked(stage, raised); now != taken {
			c.failf("Pick takes %s, with scores %v, and %s once they are %v: a higher score is better, so that who is chosen with a low one is chosen with a high one",
				taken, scores, now, raised)
		}
	})
	s.once("clock", func(t *testing.T) string {
		return clockless(t, "Pick", func(t *testing.T) answering {
			picker := newPicker(t)
			return func(req *endpick.Request, candidates []endpick.Candidate) any {
				return picker.Pick(req, candidates, make([]float64, len(candidates)))
			}
		})
	})
	s.once("concurrency", func(t *testing.T) string {
		stage := newPicker(t)
		return concurrently(func(i int) {
			req, candidates := example(i)
			scores := Scores(len(candidates)).Example(i)
			for range 100 {
				stage.Pick(&req, candidates, scores)
			}
		})
	})
}

func drawScored(rt *rapid.T) (trial, []float64) {
	c := draw(rt, mostCandidates)
	return c, Scores(len(c.candidates)).Draw(rt, "scores")
}

// picked returns the ID of the picker's choice.
func (c *trial) picked(p endpick.Picker, scores []float64) string {
	req, candidates := c.copied()
	i := 0
	c.call("Pick", func() { i = p.Pick(&req, candidates, slices.Clone(scores)) })
	if i < 0 || i >= len(candidates) {
		c.failf("Pick returns %d of %d candidates, with scores %v: it is an index into them", i, len(candidates), scores)
	}
	return c.candidates[i].Endpoint.ID
}
