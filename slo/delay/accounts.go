package delay

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict/pace"
)

// endpoint is the account of one endpoint. Times are in nanoseconds since the
// epoch.
type endpoint struct {
	pairs  float64 // of prompts that are not computed yet
	filled float64 // tokens that have come into its memory

	// The requests that are decoding, their tokens in memory, and sums over time in milliseconds.
	at                      int64
	decoding, size          float64
	decodingTime, sizeTime  float64
	computed, computedPairs float64 // so far

	pace      pace.Pace
	residents residents
	holdsBack bool // the last stream that came was held back
}

// advance brings the sums up to date.
func (e *endpoint) advance(now int64) {
	if passed := float64(now-e.at) / 1e6; passed > 0 {
		e.decodingTime += e.decoding * passed
		e.sizeTime += e.size * passed
	}
	e.at = now
}

// begins counts in a request that decodes from now on, with its prompt as computed.
func (e *endpoint) begins(l *lease) {
	e.decoding++
	e.size += l.size
	e.computed += l.fresh
	e.computedPairs += l.pairs
	e.filled += l.fresh
	l.counted = true
}

// ends counts it out.
func (e *endpoint) ends(l *lease) {
	e.decoding = max(e.decoding-1, 0)
	e.size = max(e.size-l.size, 0)
}

// mark notes the sums, for what comes after.
func (e *endpoint) mark(l *lease) {
	l.decodingTime, l.sizeTime = e.decodingTime, e.sizeTime
	l.computed, l.computedPairs = e.computed, e.computedPairs
}

// during is what n steps since the mark have taken, beside others and with itself: the means of those that
// decode and of their tokens in memory, and what was computed for prompts meanwhile.
func (e *endpoint) during(l *lease, n, spent float64) (x amounts) {
	x[tokens], x[attention] = e.computed-l.computed, e.computedPairs-l.computedPairs
	x[steps] = n
	x[batches] = n * ((e.decodingTime-l.decodingTime)/spent + l.external)
	x[contexts] = n * ((e.sizeTime-l.sizeTime)/spent + l.externalSize)
	return x
}

// lease is what is remembered of an open request.
type lease struct {
	ref      endpick.EndpointRef
	name     kindName
	stream   bool
	answered bool
	counted  bool    // among those that decode
	crowded  bool    // others were waiting at the engine, or memory was nearly full
	resident string  // its model, where that is loaded when it is asked for
	loads    bool    // it is loaded for this request
	spreads  bool    // although another server has it
	waits    bool    // it was not in memory
	took     float64 // how much longer its first token took for that; 0: not known yet
	tenant   string
	vote     float64 // what it counts among all tenants; 0: not yet known
	guess    float64

	fresh, pairs float64 // to be computed for it, by the index
	size         float64 // tokens in memory halfway through its response
	x            amounts // amounts of its time to first token
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
	for i := range ev.Candidates {
		if other := &ev.Candidates[i]; len(other.Endpoint.Residents) > 0 {
			if e := m.endpoints.At(other.Ref); e != nil {
				e.residents.hear(other.Endpoint)
			}
		}
	}
	l, e := m.leases.At(ev.Lease), m.endpoints.At(c.Ref)
	if l == nil {
		return
	}
	if e == nil {
		e = &endpoint{} // it has just been removed, while the request continues
	}
	n := nameOf(req, c.Endpoint.Variant)
	k := m.learned.find(n)
	output := m.learned.lengths.of(req)
	var v view
	v.look(req, c, e, k, output)
	*l = lease{
		ref: c.Ref, name: n, stream: req.Stream, tenant: req.Tenant, guess: req.ExpectedPerResponse(),
		fresh: v.fresh, pairs: v.pairs, size: v.size, x: v.first,
		crowded:  c.Waiting > 0 || pressed(c, k),
		external: v.external, externalSize: v.external * k.size.or(v.size),
	}
	m.routed(req.Number())
	if r := c.Endpoint.Resident(n.model); r != nil {
		queued := e.residents.of(r.Model)
		l.crowded = l.crowded || queued != nil && float64(queued.open) >= m.learned.loads.places(n.variant, r.Model)
		state := e.residents.sent(c.Endpoint, r, now, req)
		l.resident, l.waits, l.loads = r.Model, state != endpick.InMemory, state == endpick.OnDisk
		m.learned.loads.ask(r.Model)
		d := decision{m: m, req: req, candidates: ev.Candidates, now: now}
		l.spreads = l.loads && d.placed(r).there() > 1 // besides here
	}
	e.pairs += l.pairs
	if !l.stream || e.holdsBack {
		// Nobody says when it begins to decode. To those beside it, it is there from now on.
		e.advance(now)
		e.begins(l)
		e.mark(l)
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
	e := m.endpoints.Find(l.ref)
	if e != nil {
		if e.holdsBack = ev.OutputTokens > mostAtOnce*max(ev.Request.Responses, 1); e.holdsBack {
			return // to learn from it as from a response that does not stream
		}
	}
	l.answered, l.firstAt = true, now
	if l.name.variant != "" && m.learned.kinds.known[l.name] == nil {
		m.learned.kinds.admit(l.name, &m.learned.common)
	}
	m.learned.answered(ev, l, now)
	if e != nil {
		e.advance(now)
		e.pairs = max(e.pairs-l.pairs, 0)
		if !l.counted {
			e.begins(l)
		}
		e.mark(l)
		if l.resident != "" {
			m.learned.loads.answers(l.name.variant, l.resident, e.residents.answered(l.resident, now))
		}
	}
	if ttft, ok := ev.TTFT(); ok {
		if l.waits {
			l.took = m.learned.beyond(l.name, &l.x, milliseconds(ttft))
		} else {
			m.learned.firstToken(e, l, milliseconds(ttft), now)
		}
	}
}

// mostAtOnce is how many tokens of a response may come together at first. Prefill gives one: where more
// do, an engine or a proxy has collected them, and the time of their coming says nothing of it.
const mostAtOnce = 8

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
	defer m.loaded(ev, l, o)
	completed := o.Status == endpick.Completed
	// Steps of several responses can't be distinguished, and of a mirrored request only its
	// router knows how long it took.
	took, measured := ev.E2E() // what has not been measured is of an adopted request
	timed := ev.Request.Responses <= 1 && (measured || !ev.Request.Adopted.Mirrored)
	if l.answered && measured && ev.Request.Adopted != nil {
		m.learned.find(l.name).arrivals.add(now)
	}
	if completed {
		m.learned.kinds.admit(l.name, &m.learned.common)
		if !l.answered {
			m.learned.answered(ev, l, now)
		}
		m.learned.length(l, ev)
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
	if l.resident != "" {
		if completed && !l.answered {
			e.residents.answered(l.resident, now)
		}
		e.residents.left(l.resident, completed || l.answered)
	}
	if completed || l.answered {
		e.filled += float64(min(max(ev.OutputTokens, 0), mostTokens))
	}
	if !l.answered {
		e.pairs = max(e.pairs-l.pairs, 0)
		switch {
		case !completed || !timed || !measured:
		case l.waits:
			x := l.x
			x[steps] += float64(min(ev.OutputTokens, mostTokens))
			l.took = m.learned.beyond(l.name, &x, milliseconds(took))
		default:
			m.learned.wholeResponse(ev, o, l, e, known)
		}
		return
	}
	// On an endpoint that has been removed, what was computed meanwhile is not known.
	if known && timed && (completed || o.Status == endpick.Canceled) {
		m.learned.decoded(ev, l, e, completed)
	}
}

// EndpointRemoved implements [endpick.EndpointObserver].
func (m *marginal) EndpointRemoved(ref endpick.EndpointRef) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endpoints.Drop(ref)
}
