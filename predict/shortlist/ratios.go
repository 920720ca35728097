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
// kinds of endpoint, and endpoints that have stopped answering.
type ratios struct {
	mu     sync.RWMutex // guards the fields below
	slots  []ratio
	levels map[uint32]*level
}

// ratio is that of one endpoint, relative to the level of all.
type ratio struct {
	generation  uint32 // of the endpoint's Ref
	model       uint32 // zero: none
	first, rest float32
	chosen      bool // the endpoint was chosen since
}

// level is the mean of predicted over estimated, over a model's requests.
type level struct{ first, rest float64 }

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

// level returns the level of a model; r.mu is held.
func (r *ratios) level(model uint32) level {
	if l := r.levels[model]; l != nil {
		return *l
	}
	return level{1, 1}
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
	effect, ok := r.effect(p, req, candidates)
	if !ok {
		return
	}
	r.adjust(p.model, effect)
	for i := range candidates {
		next, ok := p.ratio(req, &candidates[i])
		if !ok {
			continue
		}
		ref := candidates[i].Ref
		for uint64(ref.Slot) >= uint64(len(r.slots)) {
			r.slots = append(r.slots, ratio{})
		}
		r.slots[ref.Slot] = ratio{ref.Generation, p.model, within(next.first / effect.first), within(next.rest / effect.rest), ref == chosen}
	}
}

// effect is what a request has in common for all endpoints: predictions relative to
// the known ratios, if there are any.
func (r *ratios) effect(p *price, req *endpick.Request, candidates []endpick.Candidate) (level, bool) {
	var changed, plain level
	var known, all float64
	for i := range candidates {
		next, ok := p.ratio(req, &candidates[i])
		if !ok {
			continue
		}
		all++
		plain.first, plain.rest = plain.first+next.first, plain.rest+next.rest
		if e := r.of(candidates[i].Ref, p.model); e != nil {
			known++
			changed.first, changed.rest = changed.first+next.first/float64(e.first), changed.rest+next.rest/float64(e.rest)
		}
	}
	switch {
	case known > 0:
		return level{changed.first / known, changed.rest / known}, true
	case all > 0:
		return level{plain.first / all, plain.rest / all}, true
	}
	return level{}, false
}

// adjust moves the level of a model by the effect of one request.
func (r *ratios) adjust(model uint32, effect level) {
	l := r.levels[model]
	if l == nil {
		if r.levels == nil || len(r.levels) == mostLevels {
			r.levels = map[uint32]*level{}
		}
		l = &level{effect.first, effect.rest}
		r.levels[model] = l
	}
	l.first += (effect.first - l.first) / memory
	l.rest += (effect.rest - l.rest) / memory
}

// ratio returns predicted over estimated for a candidate; false if it has no
// prediction.
func (p *price) ratio(req *endpick.Request, c *endpick.Candidate) (level, bool) {
	first, rest, ok := predicted(req, &c.Prediction)
	if !ok {
		return level{}, false
	}
	anew := float64(c.NewTokens(req))
	r := level{first / p.first.Of(c, anew), rest / p.rest.Of(c, anew)}
	return r, r.first >= leastRatio && r.first <= mostRatio && r.rest >= leastRatio && r.rest <= mostRatio
}

func within(v float64) float32 { return float32(min(max(v, leastRatio), mostRatio)) }

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
