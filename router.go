package endpick

import (
	"math"
	"math/rand/v2"
	"slices"
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
	// which the error happened, so that runtime/debug.Stack shows where. Nil: panics and
	// broken contracts are only counted, in Stats.
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
	if c.LeaseTimeout == 0 {
		c.LeaseTimeout = 10 * time.Minute
	}
	if c.ReportMaxAge == 0 {
		c.ReportMaxAge = time.Minute
	}
	return nil
}

// Router picks an endpoint for each request and keeps track of what is in
// flight. Make one with [New]. It is safe for concurrent use and starts no
// goroutine.
type Router struct {
	config Config
	epoch  time.Time // when the router was made; times of reports are relative to it
	made   time.Time // the same by time.Now, for a Clock that panics

	policy atomic.Pointer[pipeline]
	leases *leaseTable
	number atomic.Uint64
	work   sync.Pool // *decision

	mu    sync.Mutex // serializes changes of the fleet
	fleet fleet

	counts  counters
	streams streams
}

// New returns a router, or an error that matches ErrConfig, ErrBadEndpoint or
// ErrDuplicateEndpoint.
func New(config Config) (*Router, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	r := &Router{config: config, epoch: config.Clock(), made: time.Now()}
	r.fleet.byID, r.fleet.departing = map[string]member{}, map[*endpointState]*Endpoint{}
	r.work.New = func() any { return new(decision) }
	r.leases = newLeaseTable(r)
	if err := r.SetPolicy(config.Policy); err != nil {
		return nil, err
	}
	if err := r.SetEndpoints(config.Endpoints); err != nil {
		r.disclaim(r.policy.Load().stages)
		return nil, err
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
	if err := r.claim(compiled.stages); err != nil {
		return err
	}
	r.policy.Store(compiled)
	return nil
}

// Route picks an endpoint for the request and opens a lease on it. The caller
// must close the lease with [Lease.Done], whatever happens.
//
// The error is a [NoEndpointsError], a [RejectedError] or a [RequestError], or an
// [EndpointError] if there is no endpoint MirrorOf; the lease is then zero.
func (r *Router) Route(req Request) (Lease, error) {
	now := r.now()
	r.leases.expire(now)
	r.leases.reap(now, 2)

	d := r.work.Get().(*decision)
	d.req = req
	d.req.now, d.req.seed, d.req.number = now, r.config.Seed, r.number.Add(1)
	d.req.complete()
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
		r.writeReceipt(d, p, -1, err)
		return Lease{}, err
	}
	if d.req.MirrorOf != "" {
		return r.mirror(d, p)
	}
	for {
		if err := r.gather(d); err != nil {
			r.counts.noEndpoint.Add(1)
			r.writeReceipt(d, p, -1, err)
			return Lease{}, err
		}
		chosen, err := r.run(p, d)
		if err != nil {
			r.counts.rejected.Add(1)
			r.writeReceipt(d, p, -1, err)
			return Lease{}, err
		}
		m := d.memberOf(chosen)
		if !r.enter(m.state) {
			if !d.req.UnderWay {
				r.withdraw(p.Admitters, d)
			}
			continue // removed since gather: choose again among the others
		}
		r.writeReceipt(d, p, chosen, nil)
		r.counts.routed.Add(1)
		return r.leases.open(d, p, m, &d.candidates[chosen]), nil
	}
}

// gather fills in the candidates: the pool without the endpoints that the
// request excludes, and without those it avoids unless there are no others.
func (r *Router) gather(d *decision) error {
	d.pool = r.fleet.find(d.req.serving()).load()
	reported := r.refresh(d)
	d.candidates, d.excluded, d.avoided = d.rows.all[:len(d.pool)], 0, 0
	if len(d.req.Exclude)+len(d.req.Avoid) > 0 {
		d.candidates = without(d.candidates, d.req.Exclude)
		d.excluded = len(d.pool) - len(d.candidates)
		if best := without(d.candidates, d.req.Avoid); len(best) > 0 {
			d.avoided = len(d.candidates) - len(best)
			d.candidates = best
		}
	}
	if len(d.candidates) == 0 {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.fleet.explainEmpty(d.req.serving(), len(d.pool))
	}
	if reported != allSignals {
		fillAbsent(d.candidates)
	}
	return nil
}

// without moves the candidates whose ID is not in ids to the front, and returns them.
func without(candidates []Candidate, ids []string) []Candidate {
	if len(ids) == 0 {
		return candidates
	}
	return Keep(candidates, func(c *Candidate) bool { return !slices.Contains(ids, c.Endpoint.ID) })
}

// reports is the window of reports that count. After the clock has been set
// back, reports from the future count only if they are not too far ahead.
func (r *Router) reports(now time.Time) window {
	at := now.Sub(r.epoch)
	return window{oldest: at - r.config.ReportMaxAge, newest: at + r.config.ReportMaxAge}
}

// LeaseTimeout is how long a lease may go without a call: Config.LeaseTimeout,
// or its default.
func (r *Router) LeaseTimeout() time.Duration { return r.config.LeaseTimeout }

// Sweep reaps every lease that has been without a call for LeaseTimeout and
// returns how many there were. Each Route does this for a few leases; a host
// that is idle for long periods may call Sweep now and then.
func (r *Router) Sweep(now time.Time) int {
	return r.leases.reap(now, math.MaxInt)
}
