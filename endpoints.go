package endpick

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
)

// What a host says and asks about the endpoints of a router.

// SetEndpoints makes the fleet exactly these endpoints, as discovery delivers
// them. New endpoints are added. Those with a known ID are updated and keep
// their in-flight counts and learned state. All others are removed. A drained
// endpoint stays drained. If any endpoint is invalid, or two have the same ID,
// nothing changes and the error matches ErrBadEndpoint or ErrDuplicateEndpoint.
func (r *Router) SetEndpoints(endpoints []Endpoint) error {
	next := make([]*Endpoint, len(endpoints))
	wanted := make(map[string]bool, len(endpoints))
	for i := range endpoints {
		e, err := endpoints[i].prepared()
		if err != nil {
			return err
		}
		if wanted[e.ID] {
			return &EndpointError{ID: e.ID, Reason: "is listed twice", err: ErrDuplicateEndpoint}
		}
		next[i], wanted[e.ID] = e, true
	}
	r.retire(r.fleet.replace(next, wanted))
	return nil
}

// replace makes the fleet consist of these endpoints, and returns those that have left.
func (f *fleet) replace(next []*Endpoint, wanted map[string]bool) (gone []member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, m := range f.byID {
		if !wanted[id] {
			gone = append(gone, m)
			delete(f.byID, id)
		}
	}
	slices.SortFunc(gone, bySlot)
	for _, e := range next {
		m, known := f.byID[e.ID]
		switch {
		case !known:
			f.join(e)
			f.changed()
		case !reflect.DeepEqual(m.endpoint, e):
			f.describe(m, e)
		}
	}
	if len(gone) > 0 {
		f.changed()
	}
	for _, m := range gone {
		f.retire(m)
	}
	return gone
}

// Add makes an endpoint available. The error matches ErrBadEndpoint or
// ErrDuplicateEndpoint. An endpoint that is added again after its removal
// starts from scratch.
func (r *Router) Add(e Endpoint) error {
	own, err := e.prepared()
	if err != nil {
		return err
	}
	r.fleet.mu.Lock()
	defer r.fleet.mu.Unlock()
	if _, ok := r.fleet.byID[own.ID]; ok {
		return &EndpointError{ID: own.ID, Reason: "already exists", err: ErrDuplicateEndpoint}
	}
	r.fleet.join(own)
	r.fleet.changed()
	return nil
}

// Update replaces the description of an endpoint, which keeps its in-flight
// counts and what is known about its cache and load. The error matches
// ErrBadEndpoint or ErrUnknownEndpoint.
func (r *Router) Update(e Endpoint) error {
	own, err := e.prepared()
	if err != nil {
		return err
	}
	f := &r.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	old, err := f.get(own.ID)
	if err != nil {
		return err
	}
	f.describe(old, own)
	return nil
}

// Drain keeps new requests away from an endpoint; its open leases go on. The
// error matches ErrUnknownEndpoint.
func (r *Router) Drain(id string) error { return r.fleet.flag(id, draining) }

// Resume undoes Drain. The error matches ErrUnknownEndpoint.
func (r *Router) Resume(id string) error { return r.fleet.flag(id, 0) }

func (f *fleet) flag(id string, flags uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, err := f.get(id)
	if err != nil {
		return err
	}
	m.state.flags.Store(flags)
	f.changed()
	return nil
}

// Remove takes an endpoint away. Leases on it stay valid and are accounted to
// it until they end. The error matches ErrUnknownEndpoint.
func (r *Router) Remove(id string) error {
	m, err := r.fleet.remove(id)
	if err == nil {
		r.retire([]member{m})
	}
	return err
}

func (f *fleet) remove(id string) (member, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, err := f.get(id)
	if err != nil {
		return m, err
	}
	delete(f.byID, id)
	f.changed()
	f.retire(m)
	return m, nil
}

// retire tells the policy of endpoints that have been removed.
func (r *Router) retire(gone []member) {
	p := r.policy.Load()
	for _, m := range gone {
		for _, o := range p.endpointObservers {
			p.try(o, func() { o.EndpointRemoved(m.state.ref) })
		}
		r.fleet.forget(m.state)
	}
}

// Snapshot remembers what is in flight on an endpoint now. Take it when you ask an
// engine for its load, and put it into the Load that you make of the response:
// then what is routed in between is counted exactly once. The Snapshot of an
// unknown ID belongs to no endpoint, and Report refuses it.
func (r *Router) Snapshot(id string) Snapshot {
	now := r.now()
	m, err := r.fleet.member(id)
	if err != nil {
		return Snapshot{at: now}
	}
	r.leases.expire(now)
	return m.state.snapshot(now)
}

// Report records what an engine reports about itself. Impossible signals are
// dropped, and a [LoadError] names the first of them; the others are used. A
// report that was requested before the current one is ignored. One that repeats all signals
// of the current one is taken for the same page, which the engine has not written anew: what
// was routed or has ended since that page came is added to it. The error matches
// ErrUnknownEndpoint if the endpoint does not exist, or is not the one that the Snapshot was
// taken of, as after it was replaced.
func (r *Router) Report(id string, load Load) error {
	now := r.now()
	m, err := r.fleet.member(id)
	if err != nil {
		return err
	}
	r.leases.expire(now)
	asked, answered := load.Snapshot, m.state.snapshot(now)
	if asked == (Snapshot{}) {
		asked = answered
	} else if asked.ref != m.state.ref {
		return &EndpointError{ID: id, Reason: "is not the one that the Snapshot was taken of", err: ErrUnknownEndpoint}
	}
	load, err = load.clean(id)
	m.state.accept(load.prepare(asked.at.Sub(r.epoch), asked, answered))
	return err
}

// Ref returns the handle of the endpoint that has this ID now, or false if
// there is none. It is for hosts that keep state for endpoints outside of
// stages.
func (r *Router) Ref(id string) (EndpointRef, bool) {
	m, err := r.fleet.member(id)
	if err != nil {
		return EndpointRef{}, false
	}
	return m.state.ref, true
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
	f := &r.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	members := slices.Collect(maps.Values(f.byID))
	there := len(members)
	for s, e := range f.leaving {
		members = append(members, member{s, e})
	}
	candidates := make([]Candidate, len(members))
	r.fill(candidates, members, now)
	fillAbsent(candidates[:there])
	all := make([]EndpointStatus, len(members))
	for i, m := range members {
		all[i] = EndpointStatus{Candidate: candidates[i], Draining: m.state.is(draining), Removed: i >= there}
	}
	slices.SortFunc(all, func(a, b EndpointStatus) int {
		return cmp.Compare(a.Candidate.Ref.Slot, b.Candidate.Ref.Slot)
	})
	return all
}

// AppendCandidates appends to dst every endpoint that takes requests, as a
// request would see it now, ordered by slot, without match and prediction. It
// allocates and takes a lock only if dst is too small or the fleet has just changed, for callers that look
// at the fleet often.
func (r *Router) AppendCandidates(dst []Candidate) []Candidate {
	now := r.now()
	r.leases.expire(now)
	members := r.fleet.pools().all.members
	start := len(dst)
	dst = slices.Grow(dst, len(members))[:start+len(members)]
	r.fill(dst[start:], members, now)
	fillAbsent(dst[start:])
	return dst
}
