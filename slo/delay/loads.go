package delay

import (
	"slices"
	"strings"
	"time"

	"github.com/endpick/endpick"
)

// Servers that keep some of their models in memory load another one when it is asked for: that is one
// more delay, for the request and for those who wait with it. Where memory is full, the model that
// was asked for least recently has to go, and whoever comes back for it waits for its load.

// loads is what was learned of servers that load models: how long that takes, how many requests a model
// answers at a time, and what is asked for.
type loads struct {
	of    map[kindName]*loaded
	rate  mean // milliseconds a byte
	each  mean // of any model
	asked map[string]*demand
	total int64
}

// demand is how often a model was asked for, and what was loaded of it.
type demand struct {
	fading // by loads.total
	Loads
}

// Loads are the loads of a model since the start.
type Loads struct {
	Model string
	// Why it was loaded: no server had it in memory, or to wait for those was not worth it; or the
	// server itself says that it was loaded, although it was thought to be there: somebody else has
	// displaced it.
	Nowhere, Busy, Unexpected int
	// Took is how long they took together.
	Took time.Duration
}

// All is how often it was loaded, and Mean how long that took.
func (l Loads) All() int            { return l.Nowhere + l.Busy + l.Unexpected }
func (l Loads) Mean() time.Duration { return l.Took / time.Duration(max(l.All(), 1)) }

type loaded struct {
	took   mean
	clip   clip
	atOnce float64 // the most requests that were answered at a time
}

// Before anything was loaded, a gigabyte takes a second, a small model what it takes to start a
// process, and what has no size as long as ten gigabytes.
const msPerByte, leastLoad, unknownLoad = 1e-6, 100, 10_000

// maxLoads bounds the names of which something is remembered; they are those that servers have.
const maxLoads = 1024

// time is how long it takes to load a model, in milliseconds.
func (l *loads) time(variant string, r *endpick.Resident) float64 {
	if t := l.of[kindName{r.Model, variant}]; t != nil && t.took.weight > 0 {
		return t.took.or(0)
	}
	if r.Bytes > 0 {
		return max(l.rate.or(msPerByte)*float64(r.Bytes), leastLoad)
	}
	return l.each.or(unknownLoad)
}

// at returns what is known of a model; nil if there are too many.
func (l *loads) at(n kindName) *loaded {
	t := l.of[n]
	if t == nil && len(l.of) < maxLoads {
		t = new(loaded)
		l.of[n] = t
	}
	return t
}

// label learns how long a load has taken.
func (l *loads) label(variant string, r *endpick.Resident, ms float64) {
	t := l.at(kindName{r.Model, variant})
	if !(ms > 0) || ms > maxLatency || t == nil {
		return
	}
	ms = t.clip.of(ms)
	t.took.fade(ms, 1, recentLoads)
	l.each.fade(ms, 1, recentLoads)
	if r.Bytes > 0 {
		l.rate.fade(ms/float64(r.Bytes), 1, recentLoads)
	}
}

// places is how many requests a model answers at a time, as far as was seen.
func (l *loads) places(variant, model string) float64 {
	if t := l.of[kindName{model, variant}]; t != nil {
		return max(t.atOnce, 1)
	}
	return 1
}

// answers learns it from how many a model has begun to answer.
func (l *loads) answers(variant, model string, begun int) {
	if t := l.at(kindName{model, variant}); t != nil {
		t.atOnce = max(t.atOnce, float64(begun))
	}
}

// recentLoads is how many loads count: they are few, and disks get slower when they are busy.
const recentLoads = 8

// ask counts a request for a model.
func (l *loads) ask(model string) {
	l.total += oneUse
	a := l.asked[model]
	if a == nil {
		if len(l.asked) >= maxLoads {
			return
		}
		a = &demand{Loads: Loads{Model: model}}
		l.asked[model] = a
	}
	a.add(l.total)
}

// share is how likely the next request for one of two models is for the first, by the last thousand requests.
// The second is being asked for.
func (l *loads) share(first, second string) float64 {
	of := func(name string) float64 {
		if c := l.asked[name]; c != nil {
			return c.at(l.total)
		}
		return 0
	}
	n := of(first)
	return n / (n + of(second) + 1)
}

// load is the delay of a model that is not in memory on a candidate: for the request itself, and for
// those who come back for what has to go, which is passed to yield, unless that is nil. Requests
// before it, of which a model answers few at a time, are in its way, too.
func (d *decision) load(c *endpick.Candidate, yield func(model string)) (wait, back float64, loads bool) {
	e := c.Endpoint
	r := e.Resident(nameOf(d.req, "").model)
	if r == nil {
		return 0, 0, false
	}
	s, l, request := d.m.residents(c.Ref), &d.m.learned.loads, d.req.Number()
	if h := s.of(r.Model); h != nil {
		places := l.places(e.Variant, r.Model)
		wait = max(float64(h.open)+1-places, 0) / places * d.kind.decoding.or(0)
	}
	state, since := s.state(e, r, d.now, request)
	again := state == endpick.InMemory && s.reloads(r, d.req)
	switch {
	case state == endpick.InMemory && !again:
		return wait, 0, false
	case state == endpick.Loading:
		return wait + l.left(e.Variant, r, since, d.now), 0, false
	}
	took := l.time(e.Variant, r)
	wait += took
	for i := range e.Residents { // one load comes after another
		if u := &e.Residents[i]; u != r {
			if state, since := s.state(e, u, d.now, request); state == endpick.Loading {
				wait += l.left(e.Variant, u, since, d.now)
			}
		}
	}
	if d.placed(r).in[endpick.Loading] > 0 {
		back = took // it is soon ready there: a second load helps nobody
	}
	goes := func(u *endpick.Resident, busy bool, likely float64) {
		if busy {
			wait += likely * d.kind.decoding.or(0) // it goes when its requests have ended
		}
		if yield != nil {
			yield(u.Model)
		}
		// Of those who come back for it, each server that has it in memory gets its part, as this one has it.
		back += likely * l.share(u.Model, r.Model) * l.time(e.Variant, u) / max(d.placed(u).there(), 1)
	}
	if again { // with what it was loaded
		goes(r, false, 1)
	}
	s.displaced(e, r, d.now, request, d.ever(), goes)
	return wait, back, true
}

// left is how long a load under way still takes; since is 0 if it has begun at any time.
func (l *loads) left(variant string, r *endpick.Resident, since, now int64) float64 {
	took := l.time(variant, r)
	if since == 0 {
		return took / 2
	}
	return max(took-float64(now-since)/1e6, 0)
}

// placed is how many candidates have a model in each state.
type placed struct {
	model string
	in    [endpick.InMemory + 1]float64
}

func (p placed) there() float64 { return p.in[endpick.Loading] + p.in[endpick.InMemory] }

// placed counts them, once for each model, since every candidate asks.
func (d *decision) placed(u *endpick.Resident) placed {
	for _, p := range d.models {
		if p.model == u.Model {
			return p
		}
	}
	p := placed{model: u.Model}
	for i := range d.candidates {
		c := &d.candidates[i]
		if r := c.Endpoint.Resident(u.Model); r != nil {
			state, _ := d.m.residents(c.Ref).state(c.Endpoint, r, d.now, d.req.Number())
			p.in[state]++
		}
	}
	d.models = append(d.models, p)
	return p
}

// ever is the most models that a server of the current variant had in memory, or one.
func (d *decision) ever() int {
	if d.residents > 0 {
		return d.residents
	}
	d.residents = 1
	for i := range d.candidates {
		c := &d.candidates[i]
		if c.Endpoint.Variant != d.variant {
			continue
		}
		s, n := d.m.residents(c.Ref), 0
		for j := range c.Endpoint.Residents {
			if state, _ := s.state(c.Endpoint, &c.Endpoint.Residents[j], d.now, d.req.Number()); state != endpick.OnDisk {
				n++
			}
		}
		if s != nil {
			n = max(n, int(s.models))
		}
		d.residents = max(d.residents, n)
	}
	return d.residents
}

// residents is what is known of an endpoint's models; nil: nothing was sent there yet.
func (m *marginal) residents(ref endpick.EndpointRef) *residents {
	if e := m.endpoints.Find(ref); e != nil {
		return &e.residents
	}
	return nil
}

// pending is a load that has been decided upon, for a request that is not routed yet.
type pending struct {
	request uint64
	ref     endpick.EndpointRef
	model   string
}

// reserve makes the load that a decision will cause known to others that are made at the same time, so
// that they wait for it instead of causing a second one. It reports false if one of these was
// faster: then the decision is to be made again.
func (m *marginal) reserve(req *endpick.Request, c *endpick.Candidate, version uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.loading != version {
		return false
	}
	r, e := c.Endpoint.Resident(nameOf(req, "").model), m.endpoints.At(c.Ref)
	now := nanoseconds(req.Now())
	if r == nil || e == nil || req.Number() == 0 { // the last: no router will route it
		return true
	}
	state, _ := e.residents.state(c.Endpoint, r, now, req.Number())
	if state == endpick.Loading || state == endpick.InMemory && !e.residents.reloads(r, req) {
		return true
	}
	m.loading++
	h := e.residents.know(r)
	h.since, h.by = now, req.Number()
	if len(m.pending) >= maxPending { // it was never routed
		m.routed(m.pending[0].request)
	}
	m.pending = append(m.pending, pending{req.Number(), c.Ref, r.Model})
	return true
}

// maxPending is how many loads may be decided upon for requests that are being routed.
const maxPending = 256

// routed takes back what was reserved for a request.
func (m *marginal) routed(request uint64) {
	for i, p := range m.pending {
		if p.request == request {
			if h := m.residents(p.ref).of(p.model); h != nil && h.by == request {
				h.since, h.by = 0, 0
			}
			m.pending = slices.Delete(m.pending, i, i+1)
			return
		}
	}
}

// loaded learns how long a load has taken for a request that has ended: as the engine says, or by how much
// longer its first token took, if that is more: the first prompt after a load is slow, too, because it
// reads the weights. What an engine says of a model that was there is nearly nothing.
func (m *marginal) loaded(ev *endpick.Event, l *lease, o *endpick.Outcome) {
	e := ev.Candidate.Endpoint
	r, s, known := e.Resident(l.resident), m.residents(l.ref), &m.learned.loads
	took := max(milliseconds(o.LoadTime), l.took)
	if r == nil || s == nil {
		return
	}
	half := took > known.time(e.Variant, r)/2
	// Else it has waited for a load that was under way.
	missed := half && !l.waits && o.LoadTime > 0 && s.loadedAt < nanoseconds(ev.RoutedAt)
	seen := missed || l.loads && (half || m.learned.beyond(l.name, &l.x, took) > 0) // it had been there otherwise
	if missed {
		s.missed(e, nanoseconds(ev.Now))
	}
	if l.loads && seen {
		known.label(e.Variant, r, took)
	}
	a := known.asked[r.Model]
	if a == nil || !seen {
		return
	}
	a.Took += duration(took)
	switch {
	case missed:
		a.Unexpected++
	case l.spreads:
		a.Busy++
	default:
		a.Nowhere++
	}
}

// Loads returns what was loaded, by the models' names.
func (m *marginal) Loads() (all []Loads) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, a := range m.learned.loads.asked {
		if a.Took > 0 {
			all = append(all, a.Loads)
		}
	}
	slices.SortFunc(all, func(a, b Loads) int { return strings.Compare(a.Model, b.Model) })
	return all
}
