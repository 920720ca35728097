package delay

import (
	"github.com/cespare/xxhash/v2"

	"github.com/endpick/endpick"
)

// What a response teaches, at its first token and at its end.

// answered records that a request has been answered. Of a mirrored one, its end tells whether it came lately.
func (l *learned) answered(ev *endpick.Event, r *lease, now int64) {
	r.vote = l.votes.of(xxhash.Sum64String(r.tenant))
	if _, measured := ev.E2E(); measured || !ev.Request.Adopted.Mirrored {
		l.find(r.name).arrivals.add(now)
	}
}

// firstToken learns from a time to first token. e may be nil.
func (l *learned) firstToken(e *endpoint, r *lease, ms float64, now int64) {
	if !(ms > 0) || ms > maxLatency {
		return
	}
	if r.stream {
		l.first.add(l.firstClip.of(ms), r.vote)
	}
	l.computed(r)
	if r.crowded {
		return
	}
	l.label(r.name, &r.x, ms)
	l.compareTo(e, r, now, &r.x, ms, func(k *kind) *bound { return &k.late })
	l.teach(r.name, func(k *kind) { k.fresh.add(r.fresh, 1) })
}

// compareTo compares a measured time with the one expected for the kind.
func (l *learned) compareTo(e *endpoint, r *lease, now int64, x *amounts, ms float64, of func(*kind) *bound) {
	if k := l.kinds.known[r.name]; k != nil && e != nil {
		e.pace.Add(now, ms/max(k.of(x), 1e-3), of(k).deviation())
	}
	l.teach(r.name, func(k *kind) { of(k).add(ms / max(k.of(x), 1e-3)) })
}

// mostTokens is an upper bound of the length of a response.
const mostTokens = 1 << 24

// length learns from the length of a complete response.
func (l *learned) length(r *lease, ev *endpick.Event) {
	if n := ev.OutputTokens; n > 0 {
		each := float64(min(n, mostTokens)) / float64(max(ev.Request.Responses, 1))
		l.lengths.add(r.guess, each, r.vote)
	}
}

// decoded learns from the tokens after the first one.
func (l *learned) decoded(ev *endpick.Event, r *lease, e *endpoint, completed bool) {
	now := nanoseconds(ev.Now)
	took := milliseconds(ev.LastTokenAt.Sub(ev.FirstTokenAt))
	spent := float64(now-r.firstAt) / 1e6
	n := float64(min(ev.OutputTokens, mostTokens) - 1)
	if n < 1 || !(took > 0 && spent > 0) || took > maxLatency {
		return
	}
	x := e.during(r, n, spent)
	if !r.crowded {
		l.label(r.name, &x, took)
	}
	l.ended(r, &x, took)
	if e2e, ok := ev.E2E(); ok && completed {
		l.compare(r, n, milliseconds(e2e))
	}
	l.compareTo(e, r, now, &x, took, func(k *kind) *bound { return &k.slow })
}

// wholeResponse learns from a response that did not stream. If its length is unknown, its
// time says nothing.
func (l *learned) wholeResponse(ev *endpick.Event, o *endpick.Outcome, r *lease, e *endpoint, known bool) {
	if ev.OutputTokens == 0 && mayHaveTokens(ev.Request, o) {
		return
	}
	took := milliseconds(ev.Now.Sub(ev.RoutedAt))
	if !(took > 0) || took > maxLatency {
		return
	}
	n := max(float64(min(ev.OutputTokens, mostTokens)-1), 0)
	var rest amounts
	if known && r.counted {
		rest = e.during(r, n, took)
	} else { // as when it was routed, with itself
		rest[steps], rest[batches], rest[contexts] = n, n*(r.x[batches]/firstSteps+1), n*(r.x[contexts]/firstSteps+r.size)
	}
	x := r.x
	for i, v := range rest {
		x[i] += v
	}
	l.computed(r)
	l.label(r.name, &x, took)
	l.compareTo(e, r, nanoseconds(ev.Now), &x, took, func(k *kind) *bound { return &k.late })
	l.teach(r.name, func(k *kind) { k.fresh.add(r.fresh, 1) })
	l.ended(r, &rest, took)
	l.compare(r, n, took)
}

// ended learns from the end of a response that has taken so long, and so much.
func (l *learned) ended(r *lease, x *amounts, took float64) {
	l.teach(r.name, func(k *kind) {
		k.decoding.add(k.rest.of(took), r.vote)
		k.size.add(k.sizes.of(r.size), 1)
		if n := min(x[steps], l.lengths.most()); n > 0 { // else it is an embedding
			k.note(x, n)
		}
	})
}

// mayHaveTokens reports whether a response without a count may have had output tokens. It
// had none, like that of an embedding, if the engine has given its usage without any, or
// the caller expected none.
func mayHaveTokens(req *endpick.Request, o *endpick.Outcome) bool {
	if req.ExpectedOutputTokens > 0 {
		return req.ExpectedOutputTokens > 1
	}
	return o.InputTokens == 0
}
