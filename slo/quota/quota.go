package quota

import (
	"cmp"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
)

// maxTokens caps the tokens of a prompt or an output, so that a broken report
// can't put a tenant into debt for good.
const maxTokens = 1 << 24

// Limits say what one tenant may use. The zero value limits nothing.
type Limits struct {
	// Rate is how many tokens per second flow into the tenant's bucket. Zero or
	// less: tokens are not limited.
	Rate float64
	// Burst is how many tokens the bucket holds: what can be used at once after a
	// pause. Zero or less: one minute's worth of Rate.
	Burst float64
	// Requests is how many requests may be in flight at one time. Zero or less:
	// any number.
	Requests int
}

func (l *Limits) metered() bool { return l.Rate > 0 }

// burst is how much the bucket holds, at least one token.
func (l *Limits) burst() float64 {
	if l.Burst > 0 {
		return max(l.Burst, 1)
	}
	return max(60*l.Rate, 1)
}

// Config configures [New].
type Config struct {
	// Limits returns the limits of a tenant. It is called for each request, from
	// many goroutines, and may return something else each time, such as after a
	// configuration is reloaded; what a tenant has used stays used. It must be
	// set.
	Limits func(tenant string) Limits
	// OutputWeight is the cost of a generated token, in prompt tokens. Zero: 2, as in
	// VTC (Sheng et al., Fairness in Serving Large Language Models, 2024): an output
	// token takes about twice the time.
	OutputWeight float64
	// MaxTenants is how many tenants are remembered. Beyond that, the least
	// recently used one that has nothing in flight is forgotten, and starts
	// with a full bucket when it comes back. Zero: 16,384.
	MaxTenants int
}

func (c *Config) validate() error {
	switch {
	case c.Limits == nil:
		return check.Bad("quota.Config.Limits", "is nil")
	case !(c.OutputWeight >= 0 && c.OutputWeight <= 1e6):
		return check.Bad("quota.Config.OutputWeight", "is %v, not within 0 and 1e6", c.OutputWeight)
	}
	c.OutputWeight = cmp.Or(c.OutputWeight, 2)
	return check.Default("quota.Config.MaxTenants", &c.MaxTenants, 16_384)
}

// New returns an admitter that holds tenants to their limits, or an
// [endpick.ConfigError]. It belongs to one router, whose policies may share it. Time
// is the router's. It refuses requests with an [Error].
//
// Each tenant has a bucket of tokens that starts full. A request is admitted if the
// bucket holds what the request is expected to cost, or is full, and is charged at
// once. When it has ended, the difference from what it really took is refunded or
// charged. That may leave the bucket in debt, so that over any time a tenant gets
// at most Rate × time + Burst, plus what was in flight. A request that its endpoint
// refuses, or fails before the first token, costs nothing; a client that goes away
// pays for the prompt and for what it got.
func New(config Config) (endpick.Admitter, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	q := &quota{config: config, tenants: map[string]*tenant{}}
	q.idle.prev, q.idle.next = &q.idle, &q.idle
	return q, nil
}

type quota struct {
	endpick.Exclusive
	config Config

	mu      sync.Mutex
	tenants map[string]*tenant
	idle    tenant // ring of those with nothing in flight, the least recently used first
	leases  endpick.PerLease[charge]
}

// tenant is the account of one tenant.
type tenant struct {
	name       string
	prev, next *tenant // in the ring, if open is 0

	open   int     // requests in flight, and those about to be
	tokens float64 // in the bucket at that time; negative: debt
	at     time.Time
	rate   float64 // at that time
	burst  float64
}

// charge is what a request has been charged, and to whom.
type charge struct {
	tenant *tenant
	cost   float64
}

func (q *quota) Name() string { return "quota" }

func (q *quota) Admit(req *endpick.Request, _ []endpick.Candidate) error {
	limits, panicked := q.limits(req.Tenant)
	if panicked != nil {
		q.count(req, req.Now(), nil)
		panic(panicked) // the router goes on without a stage that panics, and tells the host
	}
	cost, now := q.expected(req), req.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.find(req.Tenant)
	defer q.rest(t)
	t.refill(now, &limits)
	if limits.Requests > 0 && t.open >= limits.Requests {
		return &Error{Tenant: t.name, Requests: t.open, RetryAfter: requestsRetry}
	}
	if limits.metered() {
		// Forgive rounding errors, so that a request that comes back after RetryAfter
		// is admitted.
		if need := min(cost, t.burst); t.tokens < need-1e-9*t.burst {
			return &Error{Tenant: t.name, Need: need, Have: t.tokens, RetryAfter: waitFor(need-t.tokens, limits.Rate)}
		}
		t.tokens -= cost
	}
	t.open++
	return nil
}

// limits calls Config.Limits, and returns what that panics with.
func (q *quota) limits(tenant string) (l Limits, panicked any) {
	defer func() { panicked = recover() }()
	return q.config.Limits(tenant), nil
}

// count charges a request that is not refused whatever its tenant has. Limits are nil if they are
// not known: those from before stay.
func (q *quota) count(req *endpick.Request, now time.Time, limits *Limits) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.find(req.Tenant)
	if limits != nil {
		t.refill(now, limits)
	} else {
		t.flow(now)
	}
	t.tokens -= q.paid(t, req)
	t.open++
	q.rest(t)
}

// waitFor is how long tokens take to flow in.
func waitFor(tokens, rate float64) time.Duration {
	wait := math.Ceil(tokens / rate * float64(time.Second))
	return time.Duration(min(wait, math.MaxInt64/2))
}

// Withdrawn is called by the router for an admitted request that is not routed
// after all.
func (q *quota) Withdrawn(req *endpick.Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t := q.tenants[req.Tenant]; t != nil && t.open > 0 {
		q.settle(t, q.paid(t, req))
	}
}

// Routed implements [endpick.RoutedObserver].
func (q *quota) Routed(e *endpick.Event) {
	if e.Request.Adopted != nil { // nobody has asked
		limits, panicked := q.limits(e.Request.Tenant)
		if panicked != nil {
			defer panic(panicked)
			q.count(e.Request, e.Now, nil)
		} else {
			q.count(e.Request, e.Now, &limits)
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	t, c := q.tenants[e.Request.Tenant], q.leases.At(e.Lease)
	if t != nil && c != nil {
		*c = charge{t, q.paid(t, e.Request)}
	}
}

// Done implements [endpick.DoneObserver].
func (q *quota) Done(e *endpick.Event, o *endpick.Outcome) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.leases.Find(e.Lease)
	if c == nil || c.tenant == nil {
		return
	}
	t, paid := c.tenant, c.cost
	q.leases.Drop(e.Lease)
	t.flow(e.Now)
	q.settle(t, paid-q.taken(e, o))
}

// settle ends a request of a tenant, and refunds back tokens or, if negative,
// charges them; q.mu is held.
func (q *quota) settle(t *tenant, back float64) {
	t.tokens = min(t.tokens+back, t.burst) // meaningless without a limit
	t.open--
	q.rest(t)
}

// paid is what a request was charged when it was admitted.
func (q *quota) paid(t *tenant, req *endpick.Request) float64 {
	if t.rate > 0 {
		return q.expected(req)
	}
	return 0
}

// expected is what a request is expected to cost.
func (q *quota) expected(req *endpick.Request) float64 {
	return q.cost(max(req.InputTokens, 1), req.ExpectedOutputTokens)
}

// taken is what a request has cost.
func (q *quota) taken(e *endpick.Event, o *endpick.Outcome) float64 {
	if (o.Status == endpick.Failed || o.Status == endpick.Refused) && e.OutputTokens == 0 && e.FirstTokenAt.IsZero() {
		return 0
	}
	return q.cost(cmp.Or(o.InputTokens, max(e.Request.InputTokens, 1)), e.OutputTokens)
}

func (q *quota) cost(input, output int) float64 {
	return float64(min(input, maxTokens)) + q.config.OutputWeight*float64(min(max(output, 0), maxTokens))
}

// refill adds what has flowed in since the last call, under limits that may have changed.
func (t *tenant) refill(now time.Time, l *Limits) {
	if !l.metered() {
		t.rate = 0 // without a limit, usage is forgotten
		return
	}
	if t.rate > 0 {
		t.flow(now)
	} else {
		t.tokens, t.at = l.burst(), now
	}
	t.rate, t.burst = l.Rate, l.burst()
	t.tokens = min(t.tokens, t.burst)
}

// flow adds what has flowed in since the last call. Routers call concurrently, so
// an earlier time adds nothing.
func (t *tenant) flow(now time.Time) {
	if passed := now.Sub(t.at).Seconds(); passed > 0 {
		t.tokens = min(t.tokens+passed*t.rate, t.burst)
		t.at = now
	}
}

// find returns the account of a tenant, creating it if necessary, and takes it
// out of the ring, until rest; q.mu is held.
func (q *quota) find(name string) *tenant {
	if t := q.tenants[name]; t != nil {
		t.leaveRing()
		return t
	}
	t := &tenant{name: strings.Clone(name)} // it may be a part of a request's body
	q.tenants[t.name] = t
	return t
}

func (t *tenant) leaveRing() {
	if t.next != nil {
		t.prev.next, t.next.prev = t.next, t.prev
		t.prev, t.next = nil, nil
	}
}

// rest puts a tenant with nothing in flight into the ring, as the most recently
// used one, and forgets the least recently used ones beyond the limit; q.mu is
// held.
func (q *quota) rest(t *tenant) {
	if t.open == 0 {
		last := q.idle.prev
		t.prev, t.next = last, &q.idle
		last.next, q.idle.prev = t, t
	}
	for len(q.tenants) > q.config.MaxTenants && q.idle.next != &q.idle {
		oldest := q.idle.next
		oldest.leaveRing()
		delete(q.tenants, oldest.name)
	}
}
