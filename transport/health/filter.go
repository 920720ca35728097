package health

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/health"
)

// Filter keeps requests away from endpoints that fail, for a host that sends requests
// itself and has no [transport.Transport]: without it, the server that fails at once
// always looks idlest, and gets most of the traffic. It applies the same rules, based on
// how leases end: an endpoint that fails while others serve, or has sent nothing for
// long while requests wait there, only gets single requests as trials, and a growing
// share once it serves one.
//
// It depends on the host:
//
//   - Done with [endpick.Failed] is for what is the endpoint's fault. A request that the
//     engine refuses, because of its content (4xx) or because the engine is full (429), is
//     [endpick.Refused], and one that the client gives up is [endpick.Canceled].
//   - A request that has failed is routed again, with the endpoint in Request.Exclude.
//     Only that tells an endpoint that fails from a request that fails everywhere, which
//     is held against no endpoint. A failure that is not tried elsewhere within a second
//     counts against the endpoint.
//   - Requests have a time limit to their first byte: the filter can't call off a request
//     that waits for a server that hangs.
//
// If all endpoints are out, those that fail quickly are asked anyway. If they all hang,
// requests are refused with [ErrUnavailable] until the next trial is due, within 15
// seconds; for that the filter is also an [endpick.Admitter].
//
// It takes the time from the router, allocates nothing while all endpoints are well, is
// safe for concurrent use, and belongs to one router. Make one with [NewFilter], and put
// it into a policy with [Filter.Guard].
type Filter struct {
	endpick.OneRouter

	core    *health.Health
	epoch   atomic.Pointer[time.Time] // of the first call; nil: there was none
	now     atomic.Int64              // latest call, relative to epoch
	scratch sync.Pool                 // *lists
	fleet   fleet

	mu     sync.Mutex // guards the fields below; it is locked before the core's
	leases endpick.PerLease[visit]
	waits  endpick.PerEndpoint[[2]line] // waiting for a first byte: whole responses, and streams
	doubts doubts
}

// ErrUnavailable is why a [Filter] refuses a request: all endpoints that could take it
// are known to hang.
var ErrUnavailable = errors.New("health: no endpoint responds")

var (
	_ endpick.Filter             = (*Filter)(nil)
	_ endpick.Admitter           = (*Filter)(nil)
	_ endpick.RoutedObserver     = (*Filter)(nil)
	_ endpick.FirstTokenObserver = (*Filter)(nil)
	_ endpick.DoneObserver       = (*Filter)(nil)
	_ endpick.EndpointObserver   = (*Filter)(nil)
)

// lists are the working memory of one call. Of inVain only the capacity is used.
type lists struct{ avoid, inVain []string }

// visit is one request at one endpoint.
type visit struct {
	health.Visit
	ref    endpick.Ref
	at     time.Time
	stream bool
	served bool
	likes  uint64 // see doubts
	doubt  bool   // it was in doubt when routed

	// While it waits for its first byte: its neighbours in the line, and the output
	// tokens in flight on its endpoint when it was routed.
	waiting       bool
	before, after endpick.LeaseRef
	tokens        int
}

// line is a list of visits in order of arrival.
type line struct{ oldest, newest endpick.LeaseRef }

// NewFilter returns a filter that considers all endpoints healthy.
func NewFilter() *Filter {
	f := new(Filter)
	f.core = health.NewWithin(f.clock, f.fleet.size, f.fleet.has)
	f.scratch.New = func() any { return new(lists) }
	return f
}

// Guard returns the policy with the filter before all other stages that choose or admit:
// at the head of Policy.Filters, because after a filter that keeps only the endpoints
// that hold the prompt there would be no choice left, and at the head of
// Policy.Admitters.
func (f *Filter) Guard(p endpick.Policy) endpick.Policy {
	p.Filters = slices.Concat([]endpick.Filter{f}, p.Filters)
	p.Admitters = slices.Concat([]endpick.Admitter{f}, p.Admitters)
	return p
}

// Name is what receipts show.
func (f *Filter) Name() string { return "health" }

// Endpoints returns the status of every endpoint of the filter's router that is not
// removed, in the order of [endpick.Router.Endpoints].
func (f *Filter) Endpoints(router *endpick.Router) []Status {
	return statuses(router, f.core)
}

// clock is the time of the latest call.
func (f *Filter) clock() time.Time {
	epoch := f.epoch.Load()
	if epoch == nil {
		return time.Time{}
	}
	return epoch.Add(time.Duration(f.now.Load()))
}

func (f *Filter) advance(now time.Time) {
	epoch := f.epoch.Load()
	if epoch == nil {
		first := now
		f.epoch.CompareAndSwap(nil, &first)
		epoch = f.epoch.Load()
	}
	f.now.Store(int64(now.Sub(*epoch)))
}

// Filter implements [endpick.Filter].
func (f *Filter) Filter(req *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	f.advance(req.Now())
	f.overdue(req.Now(), candidates)
	l := f.scratch.Get().(*lists)
	defer f.scratch.Put(l)
	l.avoid, l.inVain = f.core.Avoid(l.avoid[:0], l.inVain[:0])
	if len(l.avoid) == 0 {
		return candidates
	}
	kept := endpick.Keep(candidates, func(c *endpick.Candidate) bool { return !slices.Contains(l.avoid, c.Endpoint.ID) })
	if len(kept) > 0 {
		return kept
	}
	return endpick.Keep(candidates, func(c *endpick.Candidate) bool { return !f.core.InVain(c.Ref) })
}

// Admit implements [endpick.Admitter]: it refuses a request that would only wait.
func (f *Filter) Admit(_ *endpick.Request, candidates []endpick.Candidate) error {
	for i := range candidates {
		if !f.core.InVain(candidates[i].Ref) {
			return nil
		}
	}
	return ErrUnavailable
}

// overdue judges requests that have waited for too long at these endpoints, and
// failures without a retry.
func (f *Filter) overdue(now time.Time, candidates []endpick.Candidate) {
	patience := [2]time.Duration{f.core.Patience(false), f.core.Patience(true)}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.doubts.settle(now, f.core)
	if patience[0] == 0 && patience[1] == 0 {
		return
	}
	for i := range candidates {
		c := &candidates[i]
		waits := f.waits.Find(c.Ref)
		if waits == nil {
			continue
		}
		for kind := range waits {
			for patience[kind] > 0 && waits[kind] != (line{}) {
				v := f.leases.Find(waits[kind].oldest)
				if now.Sub(v.at) < patience[kind] {
					break
				}
				f.unlink(v)
				if c.InFlight.OutputTokens != v.tokens {
					f.core.Heard(v.Visit) // others have received tokens
				}
				f.core.Overdue(v.Visit)
			}
		}
	}
}

// Routed implements [endpick.RoutedObserver].
func (f *Filter) Routed(e *endpick.Event) {
	if a := e.Request.Adopted; a != nil && a.Mirrored {
		return // another router's request
	}
	f.advance(e.Now)
	f.fleet.see(e)
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.leases.At(e.Lease)
	if v == nil {
		return
	}
	ref := e.Candidate.Ref
	*v = visit{
		Visit: f.core.Sent(e.Candidate.Endpoint.ID, ref), ref: ref, at: e.Now, stream: e.Request.Stream,
		likes: likes(e.Request), tokens: e.Candidate.InFlight.OutputTokens,
	}
	v.doubt = f.doubts.again(v.likes)
	waits := f.waits.At(ref)
	if waits == nil {
		return // removed meanwhile
	}
	l := &waits[kind(v.stream)]
	v.waiting, v.before = true, l.newest
	if before := f.leases.Find(l.newest); before != nil {
		before.after = e.Lease
	} else {
		l.oldest = e.Lease
	}
	l.newest = e.Lease
}

func kind(stream bool) int {
	if stream {
		return 1
	}
	return 0
}

// unlink removes a visit from the line for a first byte; f.mu is held.
func (f *Filter) unlink(v *visit) {
	if !v.waiting {
		return
	}
	v.waiting = false
	before, after, waits := f.leases.Find(v.before), f.leases.Find(v.after), f.waits.Find(v.ref)
	if before != nil {
		before.after = v.after
	} else if waits != nil {
		waits[kind(v.stream)].oldest = v.after
	}
	if after != nil {
		after.before = v.before
	} else if waits != nil {
		waits[kind(v.stream)].newest = v.before
	}
	v.before, v.after = endpick.LeaseRef{}, endpick.LeaseRef{}
}

// FirstToken implements [endpick.FirstTokenObserver].
func (f *Filter) FirstToken(e *endpick.Event) {
	f.advance(e.Now)
	f.mu.Lock()
	defer f.mu.Unlock()
	if v := f.leases.Find(e.Lease); v != nil {
		f.serve(v, e.Now)
	}
}

// serve records that the endpoint has sent something good; f.mu is held.
func (f *Filter) serve(v *visit, now time.Time) {
	f.unlink(v)
	f.core.Heard(v.Visit)
	if v.served {
		return
	}
	v.served = true
	f.core.Served(v.Visit, v.stream, now.Sub(v.at))
	f.doubts.served(v, f.core)
}

// Done implements [endpick.DoneObserver].
func (f *Filter) Done(e *endpick.Event, o *endpick.Outcome) {
	f.advance(e.Now)
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.leases.Find(e.Lease)
	if v == nil {
		return
	}
	switch {
	case o.Status == endpick.Completed:
		f.serve(v, e.Now)
	case o.Status == endpick.Failed && v.served:
		f.core.Failed(v.Visit, false) // broken off: no other endpoint can be asked
	case o.Status == endpick.Failed:
		f.doubts.failed(v, e.Now, f.core)
	default:
		f.doubts.gone(v)
		f.core.Undecided(v.Visit)
	}
	f.unlink(v)
	f.leases.Drop(e.Lease)
}

// EndpointRemoved implements [endpick.EndpointObserver].
func (f *Filter) EndpointRemoved(ref endpick.Ref) {
	f.fleet.remove(ref)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waits.Drop(ref)
}

// fleet has the endpoints that were ever candidates.
type fleet struct {
	mu    sync.Mutex // locked last
	known endpick.PerEndpoint[bool]
	n     int
}

// see adds all candidates when a request goes to an unknown one.
func (f *fleet) see(e *endpick.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known.Find(e.Candidate.Ref) != nil {
		return
	}
	f.add(e.Candidate.Ref)
	for i := range e.Candidates {
		f.add(e.Candidates[i].Ref)
	}
}

func (f *fleet) add(ref endpick.Ref) {
	if known := f.known.At(ref); known != nil && !*known {
		*known = true
		f.n++
	}
}

func (f *fleet) remove(ref endpick.Ref) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if known := f.known.Find(ref); known != nil && *known {
		f.n--
	}
	f.known.Drop(ref)
}

func (f *fleet) size() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n
}

func (f *fleet) has(_ string, ref endpick.Ref) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known.Find(ref) != nil
}
