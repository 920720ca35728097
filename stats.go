package endpick

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
)

type counters struct {
	routed, mirrored, rejected, noEndpoint, badRequest, closed, reaped, badStage, panics atomic.Uint64
}

// Stats counts what a router has done since New.
type Stats struct {
	Routed     uint64 // leases opened
	Mirrored   uint64 // of these, mirrored ones, see Request.MirrorOf
	Closed     uint64 // leases closed, including reaped ones
	Reaped     uint64 // leases that nobody closed
	Rejected   uint64 // requests refused by an Admitter
	NoEndpoint uint64 // requests without a candidate
	BadRequest uint64 // invalid requests
	BadStage   uint64 // invalid results of stages, which were replaced
	Panics     uint64 // panics of stages and of Config.Clock; see PanicError
	Seed       uint64 // the seed in use, even if Config.Seed was zero
	OpenLeases int
	Endpoints  int // endpoints that are not removed
	Departing  int // removed endpoints with leases still open
	LeaseRoom  int // leases that can be open before the router allocates more
}

// Stats returns the router's counts.
func (r *Router) Stats() Stats {
	r.mu.Lock()
	endpoints, departing := len(r.fleet.byID), len(r.fleet.departing)
	r.mu.Unlock()
	open, room := r.leases.size()
	return Stats{
		Routed:     r.counts.routed.Load(),
		Mirrored:   r.counts.mirrored.Load(),
		Closed:     r.counts.closed.Load(),
		Reaped:     r.counts.reaped.Load(),
		Rejected:   r.counts.rejected.Load(),
		NoEndpoint: r.counts.noEndpoint.Load(),
		BadRequest: r.counts.badRequest.Load(),
		BadStage:   r.counts.badStage.Load(),
		Panics:     r.counts.panics.Load(),
		Seed:       r.config.Seed,
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
	// Removed says that the endpoint is gone except for its open leases.
	Removed bool
}

// Endpoints returns all endpoints ordered by slot, including those that are
// removed but still have open leases.
func (r *Router) Endpoints() []EndpointStatus {
	now := r.now()
	r.leases.expire(now)
	reports := r.reports(now)
	r.mu.Lock()
	defer r.mu.Unlock()
	members := slices.SortedFunc(maps.Values(r.fleet.byID), bySlot)
	candidates := make([]Candidate, len(members))
	for i, m := range members {
		m.state.fill(&candidates[i], m.endpoint, reports)
	}
	fillAbsent(candidates)
	all := make([]EndpointStatus, 0, len(members)+len(r.fleet.departing))
	for i, m := range members {
		all = append(all, EndpointStatus{Candidate: candidates[i], Draining: m.state.is(draining)})
	}
	for s, e := range r.fleet.departing {
		gone := EndpointStatus{Removed: true}
		s.fill(&gone.Candidate, e, reports)
		all = append(all, gone)
	}
	slices.SortFunc(all, func(a, b EndpointStatus) int {
		return cmp.Compare(a.Candidate.Ref.Slot, b.Candidate.Ref.Slot)
	})
	return all
}

// AppendCandidates appends to dst every endpoint that takes requests, as a
// request would see it now, ordered by slot, without match and prediction. It
// allocates only if dst is too small and takes no lock, for callers that look
// at the fleet often.
func (r *Router) AppendCandidates(dst []Candidate) []Candidate {
	now := r.now()
	r.leases.expire(now)
	reports := r.reports(now)
	members := r.fleet.all.load()
	start := len(dst)
	dst = slices.Grow(dst, len(members))[:start+len(members)]
	for i, m := range members {
		m.state.fill(&dst[start+i], m.endpoint, reports)
	}
	fillAbsent(dst[start:])
	return dst
}
