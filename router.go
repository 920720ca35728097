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
	// each call of a lease, concurrently.
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
	departing map[*endpointState]struct{} // removed, with open leases

	counts counters
}

type counters struct {
	routed, rejected, noEndpoint, badRequest, closed, reaped, badStage atomic.Uint64
}

// Stats counts what a router has done since New.
type Stats struct {
	Routed     uint64 // leases opened
	Closed     uint64 // leases closed, the reaped among them
	Reaped     uint64 // leases that nobody closed
	Rejected   uint64 // requests refused by an Admitter
	NoEndpoint uint64 // requests without a candidate
	BadRequest uint64 // requests that were not valid
	BadStage   uint64 // results of stages that broke their contract and were not used
	OpenLeases int
	Endpoints  int // that are not removed
	Departing  int // removed, with leases still open
	LeaseRoom  int // leases that can be open before the router allocates more
}

// New returns a router, or an error that matches ErrConfig, ErrBadEndpoint or
// ErrDuplicateEndpoint.
func New(config Config) (*Router, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	r := &Router{config: config, epoch: config.Clock(), departing: map[*endpointState]struct{}{}}
	r.work.New = func() any { return new(decision) }
	r.leases = newLeaseTable(r)
	r.table.Store(newTable(map[string]*endpointState{}))
	if err := r.SetPolicy(config.Policy); err != nil {
		return nil, err
	}
	for _, e := range config.Endpoints {
		if err := r.Add(e); err != nil {
			return nil, err
		}
	}
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
	if err := d.req.validate(); err != nil {
		r.counts.badRequest.Add(1)
		return Lease{}, err
	}
	p := r.policy.Load()
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
		state := d.stateOf(chosen)
		if !r.enter(state) {
			continue // removed since gather: choose among the others
		}
		d.writeReceipt(p, chosen, nil)
		r.counts.routed.Add(1)
		return r.leases.open(d, p, state, &d.candidates[chosen]), nil
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
	for _, s := range d.pool {
		c := &d.candidates[n]
		s.fill(c, oldest)
		if len(d.req.Exclude) > 0 && slices.Contains(d.req.Exclude, c.Endpoint.ID) {
			continue
		}
		reported &= c.Reported
		n++
	}
	d.candidates = d.candidates[:n]
	if n == 0 {
		return r.explainEmpty(t, d)
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

func (r *Router) explainEmpty(t *table, d *decision) error {
	err := &NoEndpointsError{Model: d.req.serving(), Excluded: len(d.pool)}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range t.byID {
		if !s.description.Load().serves(err.Model) {
			continue
		}
		err.Serving++
		if s.is(draining) {
			err.Draining++
		}
	}
	return err
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
	if err := e.validate(); err != nil {
		return err
	}
	e = e.clone()
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.table.Load().byID
	if _, ok := old[e.ID]; ok {
		return &EndpointError{ID: e.ID, Reason: "is there already", err: ErrDuplicateEndpoint}
	}
	s := &endpointState{ref: r.takeSlot(), key: Salt(e.ID)}
	s.description.Store(&e)
	byID := maps.Clone(old)
	byID[e.ID] = s
	r.table.Store(newTable(byID))
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
	return r.change(e.ID, func(s *endpointState) { s.description.Store(&e) })
}

// Drain keeps new requests away from an endpoint; its leases go on. The error
// matches ErrUnknownEndpoint.
func (r *Router) Drain(id string) error {
	return r.change(id, func(s *endpointState) { s.flags.Store(draining) })
}

// Resume takes Drain back.
func (r *Router) Resume(id string) error {
	return r.change(id, func(s *endpointState) { s.flags.Store(0) })
}

func (r *Router) change(id string, apply func(*endpointState)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.table.Load()
	s, ok := t.byID[id]
	if !ok {
		return unknownEndpoint(id)
	}
	apply(s)
	r.table.Store(newTable(t.byID))
	return nil
}

// Remove takes an endpoint away. Leases on it stay valid and are accounted to
// it until they end. The error matches ErrUnknownEndpoint.
func (r *Router) Remove(id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.table.Load()
	s, ok := t.byID[id]
	if !ok {
		return unknownEndpoint(id)
	}
	byID := maps.Clone(t.byID)
	delete(byID, id)
	r.table.Store(newTable(byID))
	r.departing[s] = struct{}{}
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
// routed in between is then counted once. The zero Mark for an unknown ID.
func (r *Router) Mark(id string) Mark {
	s, ok := r.table.Load().byID[id]
	if !ok {
		return Mark{}
	}
	return s.mark(r.config.Clock())
}

// Report takes in what an engine says of itself. A signal that can't be is
// dropped and named in a [LoadError]; the others are used. A report that was
// asked for before the one in hand is ignored. The error matches
// ErrUnknownEndpoint if the endpoint is not there, or was replaced since the
// mark.
func (r *Router) Report(id string, load Load) error {
	s, ok := r.table.Load().byID[id]
	if !ok {
		return unknownEndpoint(id)
	}
	mark := load.Mark
	if mark == (Mark{}) {
		mark = s.mark(r.config.Clock())
	} else if mark.ref != s.ref {
		return &EndpointError{ID: id, Reason: "was replaced since the mark", err: ErrUnknownEndpoint}
	}
	load, err := load.clean(id)
	next := load.prepare(mark.at.Sub(r.epoch), mark)
	for {
		held := s.report.Load()
		if held != nil && held.at > next.at {
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

// Stats returns the router's counts.
func (r *Router) Stats() Stats {
	r.mu.Lock()
	endpoints, departing := len(r.table.Load().byID), len(r.departing)
	r.mu.Unlock()
	open, room := r.leases.size()
	return Stats{
		Routed:     r.counts.routed.Load(),
		Closed:     r.counts.closed.Load(),
		Reaped:     r.counts.reaped.Load(),
		Rejected:   r.counts.rejected.Load(),
		NoEndpoint: r.counts.noEndpoint.Load(),
		BadRequest: r.counts.badRequest.Load(),
		BadStage:   r.counts.badStage.Load(),
		OpenLeases: open,
		Endpoints:  endpoints,
		Departing:  departing,
		LeaseRoom:  room,
	}
}

// EndpointStatus is an endpoint as the router sees it at one moment.
type EndpointStatus struct {
	// Candidate is what a request would see now, without match and prediction.
	Candidate Candidate
	Draining  bool
	// Removed says that the endpoint is gone but for its open leases.
	Removed bool
}

// Endpoints returns all endpoints ordered by slot, those that are removed and
// still have open leases among them.
func (r *Router) Endpoints() []EndpointStatus {
	now := r.config.Clock()
	r.leases.expire(now)
	oldest := r.oldestReport(now)
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.table.Load()
	states := slices.Collect(maps.Values(t.byID))
	slices.SortFunc(states, bySlot)
	candidates := make([]Candidate, len(states))
	for i, s := range states {
		s.fill(&candidates[i], oldest)
	}
	fillAbsent(candidates)
	all := make([]EndpointStatus, 0, len(states)+len(r.departing))
	for i, s := range states {
		all = append(all, EndpointStatus{Candidate: candidates[i], Draining: s.is(draining)})
	}
	gone := slices.SortedFunc(maps.Keys(r.departing), bySlot)
	for _, s := range gone {
		var c Candidate
		s.fill(&c, oldest)
		all = append(all, EndpointStatus{Candidate: c, Removed: true})
	}
	return all
}
