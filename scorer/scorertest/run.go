package scorertest

import (
	"math"
	"reflect"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/endpick/endpick"
)

const mostCandidates = 16

// Run checks what holds for every scorer: it writes every slot with a finite
// number, the same one for the same input, and a candidate's score does not
// depend on its place; it changes neither request nor candidates; it may be
// called concurrently. newScorer returns a scorer without history; it is
// called many times.
func Run(t *testing.T, newScorer func(*testing.T) endpick.Scorer) {
	t.Helper()
	check(t, newScorer, math.Inf(-1), math.Inf(1))
}

// RunWeighted checks all that [Run] does, and that scores are within [0, 1],
// so that they can be combined with those of other scorers.
func RunWeighted(t *testing.T, newScorer func(*testing.T) endpick.Scorer) {
	t.Helper()
	check(t, newScorer, 0, 1)
}

func check(t *testing.T, newScorer func(*testing.T) endpick.Scorer, least, most float64) {
	t.Helper()
	t.Run("scores", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			req := Requests().Draw(rt, "request")
			cs := Candidates(req, mostCandidates).Draw(rt, "candidates")
			s := newScorer(t)
			for i, v := range score(s, req, cs) {
				switch {
				case math.IsNaN(v):
					rt.Fatalf("slot %d (%s) was not written, or is not a number", i, cs[i].Endpoint.ID)
				case math.IsInf(v, 0):
					rt.Fatalf("score of %s is %v: scores are finite", cs[i].Endpoint.ID, v)
				case v < least || v > most:
					rt.Fatalf("score of %s is %v: want within [%v, %v]", cs[i].Endpoint.ID, v, least, most)
				}
			}
		})
	})
	t.Run("order", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			req := Requests().Draw(rt, "request")
			cs := Candidates(req, mostCandidates).Draw(rt, "candidates")
			shuffled := rapid.Permutation(cs).Draw(rt, "other order")
			s := newScorer(t)
			byID := map[string]float64{}
			for i, v := range score(s, req, cs) {
				byID[cs[i].Endpoint.ID] = v
			}
			for i, v := range score(s, req, shuffled) {
				if want := byID[shuffled[i].Endpoint.ID]; v != want {
					rt.Fatalf("score of %s is %v in one order and %v in another", shuffled[i].Endpoint.ID, want, v)
				}
			}
		})
	})
	t.Run("input", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			req := Requests().Draw(rt, "request")
			cs := Candidates(req, mostCandidates).Draw(rt, "candidates")
			passedReq, passed := req, slices.Clone(cs)
			newScorer(t).Score(&passedReq, passed, make([]float64, len(cs)))
			if !reflect.DeepEqual(req, passedReq) || !reflect.DeepEqual(cs, passed) {
				rt.Fatal("the scorer changed its input")
			}
		})
	})
	t.Run("concurrency", func(t *testing.T) {
		s := newScorer(t)
		var wg sync.WaitGroup
		for i := range 4 {
			req := Requests().Example(i)
			cs := Candidates(req, mostCandidates).Example(i)
			wg.Go(func() {
				dst := make([]float64, len(cs))
				for range 100 {
					s.Score(&req, cs, dst)
				}
			})
		}
		wg.Wait()
	})
}

func score(s endpick.Scorer, req endpick.Request, cs []endpick.Candidate) []float64 {
	dst := make([]float64, len(cs))
	for i := range dst {
		dst[i] = math.NaN()
	}
	s.Score(&req, cs, dst)
	return dst
}
