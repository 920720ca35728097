package endpick

import (
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Config says how a [Router] is made. The zero Config is valid: a router
// without endpoints that picks at random.
type Config struct {
	// Policy is how the router decides; see [Router.SetPolicy].
	Policy Policy
	// Endpoints are there from the start.
	Endpoints []Endpoint
	// Clock tells the time. Nil: time.Now. It is called once in Route and in
	// each call of a lease, concurrently, and never returns the zero Time.
	Clock func() time.Time
	// Seed is what chance depends on. Replicas before the same fleet should
	// differ in it, or they break ties alike.
	Seed uint64
	// LeaseTimeout is how long a lease may go without a call before it is
	// taken for lost. Zero: 10 minutes.
	LeaseTimeout time.Duration
	// ReportMaxAge is how long an engine's report counts. Zero: one minute.
	ReportMaxAge time.Duration
}

func (c *Config) validate() error {
	if c.LeaseTimeout < 0 {
		return &ConfigError{Field: "LeaseTimeout", Reason: "is negative"}
	}
	if c.ReportMaxAge < 0 {
		return &ConfigError{Field: "ReportMaxAge", Reason: "is negative"}
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.LeaseTimeout == 0 {
		c.LeaseTimeout = 10 * time.Minute
	}
	if c.ReportMaxAge == 0 {
		c.ReportMaxAge = time.Minute
	}
	return nil
}

// Router picks an endpoint for each request and keeps account of what is in
// flight. It is safe for concurrent use and starts no goroutine.
type Router struct {
	config Config
	epoch  time.Time // when the router was made; the age of reports counts from it

	table  atomic.Pointer[table]
	policy atomic.Pointer[pipeline]
	leases *leaseTable
	number atomic.Uint64
	work   sync.Pool // *decision

	mu        sync.Mutex // guards what follows, and changes of table
	slots     []uint32   // the newest generation of each endpoint slot
	freeSlots []uint32
	departing map[*endpointState]*Endpoint // removed, with open leases

	counts counters
}

// New returns a router, or an error that matches ErrConfig, ErrBadEndpoint or
// ErrDuplicateEndpoint.
func New(config Config) (*Router, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	r := &Router{config: config, epoch: config.Clock(), departing: map[*endpointState]*Endpoint{}}
	r.work.New = func() any { return new(decision) }
	r.leases = newLeaseTable(r)
	if err := r.SetPolicy(config.Policy); err != nil {
		return nil, err
	}
	byID := map[string]member{}
	for _, e := range config.Endpoints {
		if err := r.join(byID, e); err != nil {
			return nil, err
		}
	}
	r.table.Store(newTable(byID))
	return r, nil
}

// SetPolicy replaces the policy. Requests that are being routed keep the old
// one, open leases go on, and what they report goes to the observers of the
// policy that routed them. A stage that both policies hold, such as a prefix
// index, keeps its state.
func (r *Router) SetPolicy(p Policy) error {
	compiled, err := newPipeline(p)
	if err != nil {
		return err
	}
	r.policy.Store(compiled)
	return nil
}

// Route picks an endpoint for the request and opens a lease on it. The caller
// must close the lease with [Lease.Done], whatever happens.
//
// The error is a [NoEndpointsError], a [RejectedError] or a [RequestError]; in
// these cases there is no lease.
func (r *Router) Route(req Request) (Lease, error) {
	now := r.config.Clock()
	r.leases.expire(now)
	r.leases.reap(now, 2)

	d := r.work.Get().(*decision)
	d.req = req
	d.req.now, d.req.seed, d.req.number = now, r.config.Seed, r.number.Add(1)
	lease, err := r.decide(d)
	d.forget()
	r.work.Put(d)
	return lease, err
}

func (r *Router) decide(d *decision) (Lease, error) {
	p := r.policy.Load()
	if err := d.req.validate(); err != nil {
		r.counts.badRequest.Add(1)
		d.candidates = d.candidates[:0]
		d.writeReceipt(p, -1, err)
		return Lease{}, err
	}
	for {
		if err := r.gather(d); err != nil {
			r.counts.noEndpoint.Add(1)
			d.writeReceipt(p, -1, err)
			return Lease{}, err
		}
		chosen, err := p.run(d, &r.counts)
		if err != nil {
			r.counts.rejected.Add(1)
			d.writeReceipt(p, -1, err)
			return Lease{}, err
		}
		m := d.memberOf(chosen)
		if !r.enter(m.state) {
			continue // removed since gather: choose among the others
		}
		d.writeReceipt(p, chosen, nil)
		r.counts.routed.Add(1)
		return r.leases.open(d, p, m, &d.candidates[chosen]), nil
	}
}

// gather fills the candidates.
func (r *Router) gather(d *decision) error {
	t := r.table.Load()
	d.pool = t.pool(d.req.serving())
	if cap(d.candidates) < len(d.pool) {
		d.candidates = make([]Candidate, len(d.pool)+len(d.pool)/4+8)
		d.scores = make([]float64, cap(d.candidates))
		d.one = make([]float64, cap(d.candidates))
	}
	d.candidates = d.candidates[:len(d.pool)]
	n := 0
	oldest := r.oldestReport(d.req.now)
	reported := allSignals
	for _, m := range d.pool {
		c := &d.candidates[n]
		m.state.fill(c, m.endpoint, oldest)
		if len(d.req.Exclude) > 0 && slices.Contains(d.req.Exclude, c.Endpoint.ID) {
			continue
		}
		reported &= c.Reported
		n++
	}
	d.candidates = d.candidates[:n]
	if n == 0 {
		return t.explainEmpty(d.req.serving(), len(d.pool))
	}
	if reported != allSignals {
		fillAbsent(d.candidates)
	}
	return nil
}

// oldestReport is how old a report may be that still counts, since the epoch.
func (r *Router) oldestReport(now time.Time) time.Duration {
	return now.Sub(r.epoch) - r.config.ReportMaxAge
}

// enter counts a request in, unless the endpoint has been removed.
func (r *Router) enter(s *endpointState) bool {
	s.requests.Add(1)
	if !s.is(removed) {
		return true
	}
	r.leave(s)
	return false
}

// leave counts a request out; the last one to leave a removed endpoint gives
// its slot back.
func (r *Router) leave(s *endpointState) {
	if s.requests.Add(-1) == 0 && s.is(removed) {
		r.mu.Lock()
		r.release(s)
		r.mu.Unlock()
	}
}

// release gives the slot of a removed endpoint back once; r.mu is held.
func (r *Router) release(s *endpointState) {
	if _, ok := r.departing[s]; ok && s.requests.Load() == 0 {
		delete(r.departing, s)
		r.freeSlots = append(r.freeSlots, s.ref.Slot)
	}
}

// Add makes an endpoint available. The error matches ErrBadEndpoint or
// ErrDuplicateEndpoint. An endpoint that is added again after its removal
// starts anew: nothing that was known of it counts.
func (r *Router) Add(e Endpoint) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	byID := maps.Clone(r.table.Load().byID)
	if err := r.join(byID, e); err != nil {
		return err
	}
	r.table.Store(newTable(byID))
	return nil
}

// join puts a new endpoint into byID; r.mu is held.
func (r *Router) join(byID map[string]member, e Endpoint) error {
	if err := e.validate(); err != nil {
		return err
	}
	e = e.clone()
	if _, ok := byID[e.ID]; ok {
		return &EndpointError{ID: e.ID, Reason: "is there already", err: ErrDuplicateEndpoint}
	}
	byID[e.ID] = member{&endpointState{ref: r.takeSlot(), idHash: Salt(e.ID)}, &e}
	return nil
}

// takeSlot returns a slot that no endpoint has, in a new generation.
func (r *Router) takeSlot() Ref {
	slot := uint32(len(r.slots))
	if n := len(r.freeSlots); n > 0 {
		slot, r.freeSlots = r.freeSlots[n-1], r.freeSlots[:n-1]
	} else {
		r.slots = append(r.slots, 0)
	}
	r.slots[slot]++
	return Ref{Slot: slot, Generation: r.slots[slot]}
}

// Update replaces the description of an endpoint; what is in flight and what
// is known of its cache and load stay. The error matches ErrBadEndpoint or
// ErrUnknownEndpoint.
func (r *Router) Update(e Endpoint) error {
	if err := e.validate(); err != nil {
		return err
	}
	e = e.clone()
	return r.change(e.ID, func(m *member) { m.endpoint = &e })
}

// Drain keeps new requests away from an endpoint; its leases go on. The error
// matches ErrUnknownEndpoint.
func (r *Router) Drain(id string) error {
	return r.change(id, func(m *member) { m.state.flags.Store(draining) })
}

// Resume takes Drain back.
func (r *Router) Resume(id string) error {
	return r.change(id, func(m *member) { m.state.flags.Store(0) })
}

func (r *Router) change(id string, apply func(*member)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	byID := maps.Clone(r.table.Load().byID)
	m, ok := byID[id]
	if !ok {
		return unknownEndpoint(id)
	}
	apply(&m)
	byID[id] = m
	r.table.Store(newTable(byID))
	return nil
}

// Remove takes an endpoint away. Leases on it stay valid and are accounted to
// it until they end. The error matches ErrUnknownEndpoint.
func (r *Router) Remove(id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	byID := maps.Clone(r.table.Load().byID)
	m, ok := byID[id]
	if !ok {
		return unknownEndpoint(id)
	}
	delete(byID, id)
	r.table.Store(newTable(byID))
	s := m.state
	r.departing[s] = m.endpoint
	s.flags.Store(removed)
	for _, o := range r.policy.Load().endpointObservers {
		o.EndpointRemoved(s.ref)
	}
	r.release(s)
	return nil
}

func unknownEndpoint(id string) error {
	return &EndpointError{ID: id, Reason: "is unknown", err: ErrUnknownEndpoint}
}

// Mark remembers what is in flight on an endpoint now. Take it when an engine
// is asked for its load and put it into the Load that it answers with: what is
// routed in between is then counted once. The mark of an unknown ID belongs to
// no endpoint: Report refuses it.
func (r *Router) Mark(id string) Mark {
	now := r.config.Clock()
	m, ok := r.table.Load().byID[id]
	if !ok {
		return Mark{at: now}
	}
	r.leases.expire(now)
	return m.state.mark(now)
}

// Report takes in what an engine says of itself. A signal that can't be is
// dropped and named in a [LoadError]; the others are used. A report that was
// asked for before the one in hand is ignored. The error matches
// ErrUnknownEndpoint if the endpoint is not there, or was replaced since the
// mark.
func (r *Router) Report(id string, load Load) error {
	now := r.config.Clock()
	m, ok := r.table.Load().byID[id]
	if !ok {
		return unknownEndpoint(id)
	}
	s, mark := m.state, load.Mark
	if mark == (Mark{}) {
		r.leases.expire(now)
		mark = s.mark(now)
	} else if mark.ref != s.ref {
		return &EndpointError{ID: id, Reason: "was replaced since the mark", err: ErrUnknownEndpoint}
	}
	load, err := load.clean(id)
	next := load.prepare(mark.at.Sub(r.epoch), mark)
	for {
		held := s.report.Load()
		// One from the future is from before the clock was set back.
		if held != nil && held.at > next.at && held.at <= now.Sub(r.epoch) {
			return err
		}
		if s.report.CompareAndSwap(held, next) {
			return err
		}
	}
}

// Sweep reaps every lease that has been without a call for LeaseTimeout and
// returns how many there were. Route does the same a few leases at a time; a
// host that goes quiet for long may call Sweep now and then.
func (r *Router) Sweep(now time.Time) int {
	r.leases.expire(now)
	return r.leases.reap(now, math.MaxInt)
}
