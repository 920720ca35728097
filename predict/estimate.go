package predict

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/estimate"
	"github.com/endpick/endpick/internal/learn"
)

// estimates implements [estimate.Model] for package shortlist.
type estimates Latency

// Estimate implements [estimate.Model].
func (e *estimates) Estimate(req *endpick.Request) (first, rest estimate.Linear, model uint32, ok bool) {
	m := (*e.models.Load())[modelName(req)]
	if m == nil || req.InputTokens <= 0 {
		return first, rest, 0, false
	}
	second := tpot
	if !req.Stream {
		second = e2e
	}
	f, s := m.learners[ttft].Linear(), m.learners[second].Linear()
	if !trusted(s) || req.Stream && !trusted(f) {
		return first, rest, 0, false
	}
	rest = s.For(req.InputTokens, outputTokens(req))
	first = rest
	if req.Stream {
		first = f.For(req.InputTokens, outputTokens(req))
	}
	return first, rest, m.number, true
}

// enough is how many samples it takes for a model's linear part and its trees to agree
// on the best endpoint: with fewer, trees fit noise.
const enough = 5000

func trusted(l *learn.Linear) bool { return l != nil && l.Rows >= enough }

// Predicts implements [estimate.Model].
func (e *estimates) Predicts(req *endpick.Request, variant string) bool {
	m, v := (*e.models.Load())[modelName(req)], findVariant(*e.variants.Load(), variant)
	if m == nil || v == nil {
		return false
	}
	if !req.Stream {
		return m.ready(e2e, v)
	}
	return m.ready(ttft, v) && m.ready(tpot, v)
}

// Silent implements [estimate.Model].
func (e *estimates) Silent(req *endpick.Request, candidates []endpick.Candidate, indices []int32) (n int) {
	now := nanoseconds(req.Now())
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, i := range indices {
		if s := e.states.Find(candidates[i].Ref); s != nil && s.silence(now) > 0 {
			n++
		}
	}
	return n
}
