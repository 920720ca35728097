package shortlist

import (
	"sync"
	"time"

	"github.com/endpick/endpick"
)

// ratios remembers by how much the last prediction of each endpoint differed from its
// estimate, against what was predicted of others for the same request. What the trees of
// a model have to say of an endpoint changes little from one request to the next: with
// it, the order of estimates is nearly that of predictions. It also is where kinds of
// endpoint differ, and those that have stopped answering.
type ratios struct {
	mu     sync.RWMutex // guards what follows
	slots  []ratio
	levels map[uint32]*level
}

// ratio is that of one endpoint, against the level of all.
type ratio struct {
	generation  uint32 // of the endpoint in the slot
	model       uint32 // of which it is; none is zero
	first, rest float32
	chosen      bool // a request has come to the endpoint since
}

// level is predicted over estimated in the mean of a model's requests.
type level struct{ first, rest float64 }

// unknown is the ratio of an endpoint of which nothing was predicted: low enough for
// that to come soon.
var unknown = ratio{first: 0.5, rest: 0.5}

const (
	// memory is how many requests make a level.
	memory = 100
	// leastRatio and mostRatio are beyond any that tells something.
	leastRatio = 1e-6
	mostRatio  = 1e6
	// mostLevels bounds the models that levels are kept of.
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

// level returns that of a model; r.mu is held.
func (r *ratios) level(model uint32) level {
	if l := r.levels[model]; l != nil {
		return *l
	}
	return level{1, 1}
}

// learn notes what was predicted, of the candidates up to the first one that was not, and
// who of them was chosen.
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

// effect is what a request is to all endpoints: against what was known of them before,
// if anything was.
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

// adjust moves the level of a model to what one request has shown.
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

// ratio returns what was predicted of a candidate over its estimate; false if nothing
// was.
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

// predicted returns the latencies that estimates are of, in milliseconds; false if they
// are not predicted.
func predicted(req *endpick.Request, p *endpick.Prediction) (first, rest float64, ok bool) {
	if !req.Stream {
		whole := milliseconds(p.E2E)
		return whole, whole, p.Has&endpick.E2E != 0
	}
	return milliseconds(p.TTFT), milliseconds(p.TPOT), p.Has&(endpick.TTFT|endpick.TPOT) == endpick.TTFT|endpick.TPOT
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
