package shortlist

import (
	"sync"
	"time"

	"github.com/endpick/endpick"
)

// ratios remembers how far the last prediction of each endpoint was from its estimate,
// relative to other endpoints for the same request. What a model's trees add for an
// endpoint changes little from one request to the next, so with this correction the
// order of estimates is nearly that of predictions. It also covers differences between
// kinds of endpoint, and endpoints that have stopped answering. What the trees add for a
// match is kept apart, for all endpoints together: the next prompt may match elsewhere.
type ratios struct {
	mu     sync.RWMutex // guards the fields below
	slots  []ratio
	levels map[uint32]levels // by model
	recent []measured        // working memory of learn
}

// measured is a prediction over its estimate.
type measured struct {
	ratio level
	match int
	ref   endpick.Ref
}

// ratio is that of one endpoint, relative to the level of all with the same match.
type ratio struct {
	generation  uint32 // of the endpoint's Ref
	model       uint32 // zero: none
	first, rest float32
	chosen      bool // the endpoint was chosen since
}

// unknown is the ratio of an endpoint without a prediction: low enough to be
// predicted soon.
var unknown = ratio{first: 0.5, rest: 0.5}

const (
	// memory is the number of requests over which a level is averaged.
	memory = 100
	// leastRatio and mostRatio are beyond any meaningful ratio.
	leastRatio = 1e-6
	mostRatio  = 1e6
	// mostLevels limits the models with a level.
	mostLevels = 256
)

// of returns the ratios of an endpoint for a model, or nil; r.mu is held.
func (r *ratios) of(ref endpick.Ref, model uint32) *ratio {
	if uint64(ref.Slot) < uint64(len(r.slots)) {
		if e := &r.slots[ref.Slot]; e.generation == ref.Generation && e.model == model {
			return e
		}
	}
	return nil
}

// level returns the levels of a model; r.mu is held.
func (r *ratios) level(model uint32) levels {
	if l, ok := r.levels[model]; ok {
		return l
	}
	return newLevels()
}

// learn records the predictions of the candidates, up to the first one without, and which
// of them was chosen.
func (r *ratios) learn(p *price, req *endpick.Request, candidates []endpick.Candidate, chosen endpick.Ref) {
	n := 0
	for n < len(candidates) && candidates[n].Prediction.Has != 0 {
		n++
	}
	candidates = candidates[:n]
	r.mu.Lock()
	defer r.mu.Unlock()
	var s shown
	r.recent = r.recent[:0]
	for i := range candidates {
		if next, match, ok := p.ratio(req, &candidates[i]); ok {
			s.add(next, match, r.of(candidates[i].Ref, p.model))
			r.recent = append(r.recent, measured{next, match, candidates[i].Ref})
		}
	}
	l := r.level(p.model)
	effect, ok := s.effect(&l)
	if !ok {
		return
	}
	s.matches(&l, effect)
	r.adjust(p.model, l, effect)
	var by [matches]level
	for m := range by {
		by[m] = effect.times(l.match[m])
	}
	for _, m := range r.recent {
		next := m.ratio.over(by[m.match]).within()
		for uint64(m.ref.Slot) >= uint64(len(r.slots)) {
			r.slots = append(r.slots, ratio{})
		}
		r.slots[m.ref.Slot] = ratio{m.ref.Generation, p.model, float32(next.first), float32(next.rest), m.ref == chosen}
	}
}

// adjust stores the levels of a model, the level of all moved by the effect of one request.
func (r *ratios) adjust(model uint32, l levels, effect level) {
	if _, ok := r.levels[model]; !ok {
		if r.levels == nil || len(r.levels) == mostLevels {
			r.levels = map[uint32]levels{}
		}
		l.all = effect
	}
	l.all = l.all.towards(effect, memory)
	r.levels[model] = l
}

// ratio returns predicted over estimated for a candidate, and its match; false if it has
// no prediction.
func (p *price) ratio(req *endpick.Request, c *endpick.Candidate) (level, int, bool) {
	first, rest, ok := predicted(req, &c.Prediction)
	if !ok {
		return level{}, 0, false
	}
	anew := float64(c.NewTokens(req))
	r := level{first / p.first.Of(c, anew), rest / p.rest.Of(c, anew)}
	return r, matchOf(c.MatchShare(req)), r == r.within()
}

// predicted returns the latencies that are estimated, in milliseconds; false if they
// are not predicted.
func predicted(req *endpick.Request, p *endpick.Prediction) (first, rest float64, ok bool) {
	if !req.Stream {
		whole := milliseconds(p.E2E)
		return whole, whole, p.Has&endpick.E2E != 0
	}
	return milliseconds(p.TTFT), milliseconds(p.TPOT), p.Has&(endpick.TTFT|endpick.TPOT) == endpick.TTFT|endpick.TPOT
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
