package endpick

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Config configures a Router. The zero Config is valid: a router without
// endpoints that picks at random.
type Config struct {
	// Policy is how the router decides; see [Router.SetPolicy].
	Policy Policy
	// Endpoints are the initial endpoints.
	Endpoints []Endpoint
	// Clock returns the time. Nil: time.Now. It is called concurrently, once
	// in Route and in each call of a lease, and must never return the zero
	// Time. Where it panics after New, time.Now says how much time has passed
	// since New, and Warn is called. A simulation sets its own clock; so that its runs
	// can be repeated, see Seed and predict.LatencyConfig.Synchronous.
	Clock func() time.Time
	// Seed seeds all random choices. Zero: a random seed, which Stats returns,
	// so that replicas in front of one fleet don't all break ties the same way.
	// Set it to reproduce decisions.
	Seed uint64
	// LeaseTimeout is how long a lease may go without a call before it is
	// considered lost. Zero: 10 minutes. A request that may wait longer than that for
	// its first token is kept by calls of Tokens(0).
	LeaseTimeout time.Duration
	// ReportMaxAge is how long an engine's report counts. Zero: one minute.
	ReportMaxAge time.Duration
	// Warn receives errors that did not fail a request: a [PanicError] of a stage
	// or of Clock, a [StageError], or [ErrNoFirstTokens]. It is called in the goroutine in
	// which the error happened, and may call the router. Nil: panics and broken contracts are
	// only counted, in Stats.
	Warn func(error)
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
	for c.Seed == 0 {
		c.Seed = rand.Uint64()
	}
	c.LeaseTimeout = cmp.Or(c.LeaseTimeout, 10*time.Minute)
	c.ReportMaxAge = cmp.Or(c.ReportMaxAge, time.Minute)
	return nil
}

// Router picks an endpoint for each request and keeps track of what is in
// flight. Make one with [New]. It is safe for concurrent use and starts no
// goroutine.
type Router struct {
	*guard // the clock, what recovers panics, and their counts
	config Config
	self   *owner // of its stages

	policy atomic.Pointer[pipeline]
	fleet  fleet
	leases *leaseTable
	number atomic.Uint64 // requests so far
	work   sync.Pool     // *decision

	mirrored, rejected, noEndpoint, badRequest atomic.Uint64
}

// New returns a router, or a [ConfigError], or an error that matches ErrBadEndpoint or
// ErrDuplicateEndpoint.
func New(config Config) (*Router, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	r := &Router{config: config, self: new(owner)}
	r.guard = &guard{clock: newClock(config.Clock), warn: config.Warn}
	r.fleet.byID, r.fleet.leaving = map[string]member{}, map[*endpointState]*Endpoint{}
	r.leases = newLeaseTable(r.guard, &r.fleet, config.LeaseTimeout)
	r.work.New = func() any { return new(decision) }
	if err := r.SetPolicy(config.Policy); err != nil {
		return nil, err
	}
	if err := r.SetEndpoints(config.Endpoints); err != nil {
		for _, s := range r.policy.Load().stages {
			disown(s, r.self)
		}
		return nil, err
	}
	return r, nil
}

// SetPolicy replaces the policy. Requests that are being routed keep the old
// one, open leases go on, and what they report goes to the observers of the
// policy that routed them. A stage that both policies hold, such as a prefix
// index, keeps its state.
func (r *Router) SetPolicy(policy Policy) error {
	p, err := newPipeline(policy, r.guard)
	if err != nil {
		return err
	}
	var mine []any // stages that have become this router's
	for _, s := range p.stages {
		first, ok := own(s, r.self)
		if !ok {
			for _, s := range mine {
				disown(s, r.self)
			}
			return &ConfigError{Field: "Policy", Reason: fmt.Sprintf("has stage %s, which is already in another router: make a policy for each", stageName(s))}
		}
		if first {
			mine = append(mine, s)
		}
	}
	r.policy.Store(p)
	return nil
}

// Route picks an endpoint for the request and opens a lease on it. The caller
// must close the lease with [Lease.Done], whatever happens.
//
// The error is a [NoEndpointError], a [ContextError], a [RejectedError] or a [RequestError],
// or an [EndpointError] if there is no endpoint that the request was adopted from; the lease is
// then zero.
func (r *Router) Route(req Request) (Lease, error) {
	now := r.now()
	r.leases.expire(now)  // prefills that should have ended
	r.leases.reap(now, 2) // of lost leases, those in the next two slots

	d := r.work.Get().(*decision)
	d.req = req
	d.req.now, d.req.seed, d.req.number = now, r.config.Seed, r.number.Add(1)
	p := r.policy.Load()
	lease, err := r.decide(d, p)
	if err != nil {
		r.count(err)
		d.req.Receipt.write(d, p, -1, err)
	}
	d.forget()
	r.work.Put(d)
	return lease, err
}

// decide chooses an endpoint and opens a lease on it. An adopted request has been sent already: it goes
// through matcher and predictor, so that the accounts are right, and nothing chooses. A mirrored one is another
// gateway's, which measures it.
func (r *Router) decide(d *decision, p *pipeline) (Lease, error) {
	d.candidates = d.candidates[:0]
	if err := d.req.complete(); err != nil {
		return Lease{}, err
	}
	for {
		if err := r.gather(d); err != nil {
			return Lease{}, err
		}
		chosen, err := p.choose(d)
		if err == errBroken {
			continue
		}
		if err != nil {
			return Lease{}, err
		}
		at, _ := search(d.pool, d.candidates[chosen].Ref.Slot)
		m := d.pool[at]
		most := m.endpoint.MaxInFlight
		if d.req.Adopted != nil {
			most = 0
		}
		if !r.fleet.enter(m.state, most) { // removed or full since gather: choose again among the others
			if d.req.Adopted == nil {
				p.withdraw(p.Admitters, &d.req)
			}
			continue
		}
		if a := d.req.Adopted; a != nil && a.Mirrored {
			r.mirrored.Add(1)
		}
		d.req.Receipt.write(d, p, chosen, nil)
		return r.leases.open(d, p, m, &d.candidates[chosen]), nil
	}
}

// gather makes the candidates of a request: the endpoints that serve its model, without
// those that it excludes, and without those asleep or avoided unless there are no others. Contexts
// count before that: an avoided endpoint where the prompt fits is better than none.
func (r *Router) gather(d *decision) error {
	req := &d.req
	pools := r.fleet.pools()
	d.pool = pools.find(req.serving()).members
	if a := req.Adopted; a != nil {
		req.Exclude, req.Avoid = nil, nil
		m, err := r.fleet.member(a.Endpoint)
		if err != nil {
			return err
		}
		at, ok := search(d.pool, m.state.ref.Slot)
		if !ok || d.pool[at].state != m.state { // drained, or listed for another model
			d.pool, at = []member{m}, 0
		}
		d.adopted = at
	}
	d.grow(len(d.pool))
	d.candidates = d.candidates[:len(d.pool)]
	reported, asleep := r.fill(d.candidates, d.pool, req.now)

	d.candidates = r.fleet.without(d, req.Exclude)
	d.excluded = len(d.pool) - len(d.candidates)
	d.full, d.short, d.later = 0, 0, 0
	d.limited = req.Adopted == nil && pools.limited
	if d.limited {
		d.keepFitting()
	}
	all := d.candidates
	if asleep && req.Adopted == nil {
		if best := Keep(all, func(c *Candidate) bool { return c.Report == nil || !c.Report.Asleep }); len(best) > 0 {
			d.candidates = best
		}
	}
	if best := r.fleet.without(d, req.Avoid); len(best) > 0 {
		d.candidates = best
	}
	d.avoided = all[len(d.candidates):]
	if d.limited {
		d.keepFree()
		d.keepLowestTier()
	}
	if len(d.candidates) == 0 {
		return pools.explainEmpty(d)
	}
	if reported != allSignals {
		fillAbsent(d.candidates)
	}
	return nil
}

// fill makes a candidate of each endpoint, without the signals that it does not report, and
// returns those that all report, and whether anybody is asleep.
func (r *Router) fill(candidates []Candidate, members []member, now time.Time) (reported Signals, asleep bool) {
	oldest := now.Sub(r.epoch) - r.config.ReportMaxAge
	reported = allSignals
	for i, m := range members {
		asleep = m.state.fill(&candidates[i], m.endpoint, oldest) || asleep
		reported &= candidates[i].Reported
	}
	return reported, asleep
}

// Now is the router's time: that of Config.Clock, but never back. What measures time beside the
// router, such as transport, asks for it here.
func (r *Router) Now() time.Time { return r.now() }

// LeaseTimeout is how long a lease may go without a call: Config.LeaseTimeout,
// or its default.
func (r *Router) LeaseTimeout() time.Duration { return r.config.LeaseTimeout }

// Sweep reaps every lease that has been without a call for LeaseTimeout and
// returns how many there were. now is the time of Config.Clock. Each Route does this for a
// few leases; a host that is idle for long periods may call Sweep now and then.
func (r *Router) Sweep(now time.Time) int { return r.leases.reap(r.at(now), math.MaxInt) }

// Stats counts what a router has done since New.
type Stats struct {
	Routed      uint64 // leases opened
	Mirrored    uint64 // of these, those that other routers have sent; see Adopted
	Closed      uint64 // leases closed, including reaped ones
	Reaped      uint64 // leases that nobody closed
	Rejected    uint64 // requests refused by an Admitter
	NoEndpoint  uint64 // requests without a candidate
	BadRequest  uint64 // invalid requests
	StageErrors uint64 // invalid results of stages, which were replaced
	Undecided   uint64 // decisions of filters that no candidate met, and that were left out
	Panics      uint64 // panics of stages and of Config.Clock; see PanicError
	Seed        uint64 // the seed in use, even if Config.Seed was zero
	OpenLeases  int
	Endpoints   int // endpoints that are not removed
	RemovedOpen int // removed endpoints with leases still open
}

// Stats returns the router's counts.
func (r *Router) Stats() Stats {
	closed := r.leases.closed.Load() // before those that were opened, of which there are more
	opened := r.leases.opened.Load()
	r.fleet.mu.Lock()
	defer r.fleet.mu.Unlock()
	return Stats{
		Routed:      opened,
		Mirrored:    r.mirrored.Load(),
		Closed:      closed,
		Reaped:      r.leases.reaped.Load(),
		Rejected:    r.rejected.Load(),
		NoEndpoint:  r.noEndpoint.Load(),
		BadRequest:  r.badRequest.Load(),
		StageErrors: r.broken.Load(),
		Undecided:   r.undecided.Load(),
		Panics:      r.panics.Load(),
		Seed:        r.config.Seed,
		OpenLeases:  int(opened - closed),
		Endpoints:   len(r.fleet.byID),
		RemovedOpen: len(r.fleet.leaving),
	}
}

// count counts a request that was not routed.
func (r *Router) count(err error) {
	switch err.(type) {
	case *RequestError:
		r.badRequest.Add(1)
	case *RejectedError:
		r.rejected.Add(1)
	default:
		r.noEndpoint.Add(1)
	}
}
