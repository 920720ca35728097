package delay

import (
	"math"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict/pace"
)

// endpoint is the account of one endpoint. Times are in nanoseconds since the
// epoch.
type endpoint struct {
	pairs float64 // of prompts that are not computed yet

	// The requests that are decoding, and sums over time in milliseconds.
	at                      int64
	decoding, resident      float64
	decodingTime, sizeTime  float64
	computed, computedPairs float64 // so far

	pace pace.Pace
	silence

	difference float64 // its load minus the mean of its kind, when last compared
	differed   int64
}

// advance brings the sums up to date.
func (e *endpoint) advance(now int64) {
	if passed := float64(now-e.at) / 1e6; passed > 0 {
		e.decodingTime += e.decoding * passed
		e.sizeTime += e.resident * passed
	}
	e.at = now
}

// begins counts in a request that decodes from now on, with its prompt as computed.
func (e *endpoint) begins(l *lease) {
	e.decoding++
	e.resident += l.size
	e.computed += l.fresh
	e.computedPairs += l.pairs
	l.counted = true
}

// ends counts it out.
func (e *endpoint) ends(l *lease) {
	e.decoding = max(e.decoding-1, 0)
	e.resident = max(e.resident-l.size, 0)
}

// mark notes the sums, for what comes after.
func (e *endpoint) mark(l *lease) {
	l.decodingTime, l.sizeTime = e.decodingTime, e.sizeTime
	l.computed, l.computedPairs = e.computed, e.computedPairs
}

// beside is the mean of what was there since the mark: requests that decode,
// and their tokens in memory.
func (e *endpoint) beside(l *lease, spent float64) (batch, size float64) {
	return (e.decodingTime-l.decodingTime)/spent + l.external, (e.sizeTime-l.sizeTime)/spent + l.externalSize
}

// lease is what is remembered of an open request.
type lease struct {
	ref      endpick.EndpointRef
	name     kindName
	stream   bool
	answered bool
	counted  bool // among those that decode
	apart    bool // its kind has no place yet, and there are others
	crowded  bool // others were waiting at the engine, or memory was nearly full
	unsure   bool // the engine may have evicted blocks that the index counts on
	tenant   string
	guess    float64
	routedAt int64

	input        float64 // prompt tokens
	fresh, pairs float64 // to be computed for it, by the index
	size         float64 // tokens in memory halfway through its response
	output       float64 // expected
	x            amounts // amounts of its time to first token
	first        float64 // that time, until it can be learned from; 0: none
	external     float64 // requests there from other routers
	externalSize float64

	// The endpoint's sums at its first token; when it was routed if it does not stream.
	firstAt                 int64
	decodingTime, sizeTime  float64
	computed, computedPairs float64
}

// Routed implements [endpick.RoutedObserver].
func (m *marginal) Routed(ev *endpick.Event) {
	now := nanoseconds(ev.RoutedAt)
	c, req := ev.Candidate, ev.Request
	m.mu.Lock()
	defer m.mu.Unlock()
	l, e := m.leases.At(ev.Lease), m.endpoints.At(c.Ref)
	if l == nil {
		return
	}
	if e == nil {
		e = &endpoint{} // it has just been removed, while the request continues
	}
	n := nameOf(req, c.Endpoint.Variant)
	k := m.find(n)
	output := m.lengths.of(req)
	var o outlook
	m.look(&o, req, c, e, k, output)
	*l = lease{
		ref: c.Ref, name: n, stream: req.Stream, tenant: req.Tenant, guess: req.ExpectedPerResponse(),
		apart:    m.kinds[n] == nil && several(ev.Candidates, c.Endpoint.Variant),
		routedAt: now, input: float64(max(req.InputTokens, 1)), fresh: o.fresh, pairs: o.pairs, size: o.size, output: output, x: o.first,
		crowded: c.Waiting > 0 || pressed(c, k), unsure: c.PrefixTokens > 0 && c.KVUsage > mostIdle,
		external: o.external, externalSize: o.external * k.size.or(o.size),
	}
	e.pairs += l.pairs
	if !l.stream {
		// Nobody says when it begins to decode. To those beside it, it is there from now on.
		e.advance(now)
		e.begins(l)
		e.mark(l)
	}
	m.prompt.add(l.input + output)
	m.anew.add(float64(max(c.NewTokens(req), 1)) + output) // blocks that were evicted would have been found
	expected := k.of(&o.first) * k.late.ratio()
	if !req.Stream {
		expected = (k.of(&o.first) + output*k.of(&o.step)) * k.late.ratio()
	}
	if m.common.labels == 0 {
		expected = 0 // a number of tokens
	}
	e.wait(now, expected)
	m.record(req, ev.Candidates, now)
	m.compare(ev.Candidates, n, now)
}

// several reports whether a request could have gone to a server of another variant.
func several(candidates []endpick.Candidate, variant string) bool {
	for i := range candidates {
		if candidates[i].Endpoint.Variant != variant {
			return true
		}
	}
	return false
}

// compare compares the loads of a kind, at intervals of half the time of a
// response. It adds integers, so that the order of candidates does not matter.
func (m *marginal) compare(candidates []endpick.Candidate, n kindName, now int64) {
	k := m.kinds[n]
	if k == nil {
		return
	}
	every := int64(k.decoding.or(0) / 2 * 1e6)
	if since := now - k.compared; every <= 0 || since >= 0 && since < every {
		return
	}
	k.compared = now
	mean := average(candidates, n.variant)
	var count, lags, square, product int64
	for i := range candidates {
		c := &candidates[i]
		if c.Endpoint.Variant != n.variant {
			continue
		}
		e := m.endpoints.At(c.Ref)
		if e == nil {
			continue
		}
		difference := min(max(c.BatchSize()-mean, -1e4), 1e4)
		if lag := now - e.differed; e.differed != 0 && lag > 0 && lag < 2*every {
			count++
			lags += lag / 1e6
			square += int64(e.difference * e.difference * 1024)
			product += int64(e.difference * difference * 1024)
		}
		e.difference, e.differed = difference, now
	}
	if count > 0 {
		lag := float64(lags) / float64(count)
		k.persistence.add(float64(square)/1024, float64(product)/1024, lag)
		m.common.persistence.add(float64(square)/1024, float64(product)/1024, lag)
	}
}

// FirstToken implements [endpick.FirstTokenObserver].
func (m *marginal) FirstToken(ev *endpick.Event) {
	now := nanoseconds(ev.Now)
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.leases.Find(ev.Lease)
	if l == nil || l.answered {
		return
	}
	l.answered, l.firstAt = true, now
	if l.apart {
		m.admit(l.name)
	}
	if e := m.endpoints.Find(l.ref); e != nil {
		e.advance(now)
		e.leave(now, true)
		e.pairs = max(e.pairs-l.pairs, 0)
		if !l.counted {
			e.begins(l)
		}
		e.mark(l)
	}
	ttft, ok := ev.TTFT()
	if ms := milliseconds(ttft); ok && ms > 0 && ms <= maxLatency {
		if l.stream {
			m.first.add(ms)
		}
		if k := m.kinds[l.name]; k != nil && k.labels > 0 {
			m.computed.fade(l.fresh, recent)
			m.computing.fade(k.each[tokens]*l.fresh, recent)
		}
		if l.crowded {
			return
		}
		if l.unsure {
			l.first = ms
		} else {
			m.learn(l.name, &l.x, ms)
		}
		m.comparePace(l, now, &l.x, ms, func(k *kind) *bound { return &k.late })
		for _, k := range [...]*kind{&m.common, m.kinds[l.name]} {
			if k != nil {
				k.late.add(ms / max(k.of(&l.x), 1e-3))
				k.fresh.add(l.fresh)
			}
		}
	}
}

// mostIdle is the memory usage beyond which idle blocks have less room than running
// requests, and the engine may have evicted blocks that the index counts on.
const mostIdle = 0.5

// learnFirst learns from a time to first token, once the engine has reported how much
// of the prompt was cached.
func (m *marginal) learnFirst(l *lease, o *endpick.Outcome) {
	if l.first == 0 {
		return
	}
	if o.HasCachedTokens {
		found := float64(o.CachedTokens)
		if o.InputTokens > 0 { // in the engine's tokens
			found *= l.input / float64(o.InputTokens)
		}
		found = min(found, l.input-1)
		fresh := l.input - found
		l.x[tokens] = max(l.x[tokens]+fresh-l.fresh, fresh)
		l.x[pairs] = max(l.x[pairs]+fresh*(found+fresh/2)-l.pairs, 0)
	}
	m.learn(l.name, &l.x, l.first)
}

// Done implements [endpick.DoneObserver].
func (m *marginal) Done(ev *endpick.Event, o *endpick.Outcome) {
	now := nanoseconds(ev.Now)
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.leases.Find(ev.Lease)
	if l == nil {
		return
	}
	defer m.leases.Drop(ev.Lease)
	completed := o.Status == endpick.Completed
	// Steps of several responses can't be distinguished, and of a mirrored request only its
	// router knows how long it took.
	a := ev.Request.Adopted
	timed := ev.Request.Responses <= 1 && (a == nil || !a.Mirrored || a.Took > 0)
	if completed {
		m.admit(l.name)
		m.learnFirst(l, o)
		if ev.OutputTokens > 0 {
			m.lengths.add(l.tenant, l.guess, float64(min(ev.OutputTokens, mostTokens))/float64(max(ev.Request.Responses, 1)))
		}
	}
	e := m.endpoints.Find(l.ref)
	known := e != nil
	if !known {
		e = &endpoint{}
	}
	e.advance(now)
	if l.counted {
		e.ends(l)
	}
	if !l.answered {
		e.leave(now, completed)
		e.pairs = max(e.pairs-l.pairs, 0)
		if completed && timed {
			m.labelWhole(ev, o, l, e, known)
		}
		return
	}
	// On an endpoint that has been removed, what was computed meanwhile is not known.
	if known && timed && (completed || o.Status == endpick.Canceled) {
		m.labelDecode(ev, l, e, completed)
	}
}

// mostTokens is an upper bound of the length of a response.
const mostTokens = 1 << 24

// labelDecode learns from the tokens after the first one.
func (m *marginal) labelDecode(ev *endpick.Event, l *lease, e *endpoint, completed bool) {
	took := milliseconds(ev.LastTokenAt.Sub(ev.FirstTokenAt))
	spent := float64(nanoseconds(ev.Now)-l.firstAt) / 1e6
	n := float64(min(ev.OutputTokens, mostTokens) - 1)
	if n < 1 || !(took > 0 && spent > 0) || took > maxLatency {
		return
	}
	batch, size := e.beside(l, spent)
	var x amounts
	x[tokens], x[pairs] = e.computed-l.computed, e.computedPairs-l.computedPairs
	x[steps], x[batches], x[contexts] = n, n*batch, n*size // with itself
	if !l.crowded {
		m.learn(l.name, &x, took)
	}
	for _, k := range [...]*kind{&m.common, m.kinds[l.name]} {
		if k == nil {
			continue
		}
		k.slow.add(took / max(k.of(&x), 1e-3))
		k.decoding.add(took)
		k.size.add(l.size)
		k.note(&x, n)
	}
	if completed {
		m.compareWithIdle(ev, l, n+1)
	}
	m.comparePace(l, nanoseconds(ev.Now), &x, took, func(k *kind) *bound { return &k.slow })
}

// compareWithIdle records how long a response of so many tokens took, and would have
// taken on an idle server.
func (m *marginal) compareWithIdle(ev *endpick.Event, l *lease, output float64) {
	k := m.kinds[l.name]
	if _, timed := ev.TTFT(); !timed || k == nil || k.labels == 0 {
		return
	}
	each := k.each[steps] + k.each[batches] + k.each[contexts]*l.size
	m.idle.add(output*each + k.each[tokens]*l.fresh)
	m.whole.add(milliseconds(ev.Now.Sub(ev.RoutedAt)))
}

// comparePace compares a measured time with the time expected for the kind.
func (m *marginal) comparePace(l *lease, now int64, x *amounts, ms float64, of func(*kind) *bound) {
	k, e := m.kinds[l.name], m.endpoints.Find(l.ref)
	if k != nil && e != nil {
		e.pace.Add(now, ms/max(k.of(x), 1e-3), of(k).deviation())
	}
}

// note records how much was computed for others during a step.
func (k *kind) note(x *amounts, n float64) {
	const keep = 1 - 1.0/memory
	k.meanwhile[tokens] = k.meanwhile[tokens]*keep + x[tokens]
	k.meanwhile[pairs] = k.meanwhile[pairs]*keep + x[pairs]
	k.meanSteps = k.meanSteps*keep + n
}

// labelWhole learns from a response that did not stream. If its length is unknown, its
// time says nothing.
func (m *marginal) labelWhole(ev *endpick.Event, o *endpick.Outcome, l *lease, e *endpoint, known bool) {
	if ev.OutputTokens == 0 && mayHaveTokens(ev.Request, o) {
		return
	}
	took := milliseconds(ev.Now.Sub(ev.RoutedAt))
	if !(took > 0) || took > maxLatency {
		return
	}
	n := max(float64(min(ev.OutputTokens, mostTokens)-1), 0)
	x := l.x
	x[steps] += n
	batch, size := l.x[batches]/firstSteps+1, l.x[contexts]/firstSteps+l.size // when it was routed
	if known && l.counted {
		batch, size = e.beside(l, took)
		x[tokens] += e.computed - l.computed
		x[pairs] += e.computedPairs - l.computedPairs
	}
	x[batches] += n * batch
	x[contexts] += n * size
	m.learn(l.name, &x, took)
	m.comparePace(l, nanoseconds(ev.Now), &x, took, func(k *kind) *bound { return &k.late })
	for _, k := range [...]*kind{&m.common, m.kinds[l.name]} {
		if k != nil {
			k.late.add(took / max(k.of(&x), 1e-3))
			k.fresh.add(l.fresh)
			k.size.add(l.size)
			k.decoding.add(took)
		}
	}
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

// EndpointRemoved implements [endpick.EndpointObserver].
func (m *marginal) EndpointRemoved(ref endpick.EndpointRef) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endpoints.Drop(ref)
}

// nanoseconds is t.UnixNano, clamped so that sums don't overflow.
func nanoseconds(t time.Time) int64 {
	return max(math.MinInt64/4, min(t.UnixNano(), math.MaxInt64/4))
}
