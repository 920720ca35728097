package endpick

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// member is an endpoint of the fleet: its description, which Router.Update
// replaces, and its state, which lives as long as the endpoint.
type member struct {
	state    *endpointState
	endpoint *Endpoint
}

func bySlot(a, b member) int { return cmp.Compare(a.state.ref.Slot, b.state.ref.Slot) }

// fleet holds a router's endpoints, and the pools that requests choose from.
// Router.mu guards changes; load and find take no lock.
type fleet struct {
	byID   map[string]member
	all    pool // every endpoint: for requests that name no model
	every  pool // those that list no names: for models that nobody lists
	shards [64]atomic.Pointer[map[string]*pool]

	slots     []uint32 // current generation of each slot
	freeSlots []uint32
	versions  versions
	departing map[*endpointState]*Endpoint // removed, with open leases
}

// pool is a set of endpoints to choose from, without those that are drained.
type pool struct {
	// members are ordered by slot. A published slice never changes, but a longer
	// one may share its array.
	members atomic.Pointer[[]member]
	serving int // endpoints in the pool, plus those that are drained
}

func (p *pool) load() []member {
	if m := p.members.Load(); m != nil {
		return *m
	}
	return nil
}

func (p *pool) store(members []member) { p.members.Store(&members) }

func (p *pool) search(slot uint32) (int, bool) {
	return slices.BinarySearchFunc(p.load(), slot, func(m member, slot uint32) int {
		return cmp.Compare(m.state.ref.Slot, slot)
	})
}

// put inserts an endpoint, or replaces the one in its slot.
func (p *pool) put(m member) {
	members := p.load()
	at, found := p.search(m.state.ref.Slot)
	switch {
	case found:
		members = slices.Clone(members)
		members[at] = m
	case at == len(members):
		members = append(members, m)
	default:
		members = slices.Insert(slices.Clip(members), at, m)
	}
	p.store(members)
}

// take removes an endpoint.
func (p *pool) take(m member) {
	if at, found := p.search(m.state.ref.Slot); found {
		members := p.load()
		p.store(slices.Concat(members[:at], members[at+1:]))
	}
}

// find returns the pool of a model or adapter; the empty name is the pool of all endpoints.
func (f *fleet) find(name string) *pool {
	if name == "" {
		return &f.all
	}
	if p := f.named(name); p != nil {
		return p
	}
	return &f.every
}

func (f *fleet) shard(name string) *atomic.Pointer[map[string]*pool] {
	return &f.shards[xxhash.Sum64String(name)%uint64(len(f.shards))]
}

// named returns the pool of a name that some endpoint lists, or nil.
func (f *fleet) named(name string) *pool {
	if pools := f.shard(name).Load(); pools != nil {
		return (*pools)[name]
	}
	return nil
}

// pools calls yield once with every pool that an endpoint belongs to. It
// creates pools of names as needed; they start with the endpoints that serve
// every model.
func (f *fleet) pools(e *Endpoint, yield func(*pool)) {
	yield(&f.all)
	if e.servesAll() {
		yield(&f.every)
		for i := range f.shards {
			if pools := f.shards[i].Load(); pools != nil {
				for _, p := range *pools {
					yield(p)
				}
			}
		}
		return
	}
	for _, name := range e.names() {
		p := f.named(name)
		if p == nil {
			p = &pool{serving: f.every.serving}
			p.store(slices.Clone(f.every.load()))
			shard := f.shard(name)
			var pools map[string]*pool
			if old := shard.Load(); old != nil {
				pools = maps.Clone(*old)
			} else {
				pools = map[string]*pool{}
			}
			pools[name] = p
			shard.Store(&pools)
		}
		yield(p)
	}
}

// prune drops the pools whose name no endpoint lists any more.
func (f *fleet) prune(names []string) {
	for _, name := range names {
		if p := f.named(name); p != nil && p.serving == f.every.serving {
			shard := f.shard(name)
			pools := maps.Clone(*shard.Load())
			delete(pools, name)
			shard.Store(&pools)
		}
	}
}

// show counts an endpoint and puts it into its pools, unless it is drained.
func (f *fleet) show(m member) {
	f.pools(m.endpoint, func(p *pool) {
		p.serving++
		if !m.state.is(draining) {
			p.put(m)
		}
	})
}

// hide is the reverse of show.
func (f *fleet) hide(m member) {
	f.pools(m.endpoint, func(p *pool) {
		p.serving--
		p.take(m)
	})
	f.prune(m.endpoint.names())
}

// join gives a validated, cloned endpoint a slot, but puts it into no pool.
func (f *fleet) join(e *Endpoint) member {
	m := member{&endpointState{ref: f.takeSlot(), idHash: Salt(e.ID)}, e}
	f.byID[e.ID] = m
	return m
}

// takeSlot returns a free slot with a new generation.
func (f *fleet) takeSlot() Ref {
	slot := uint32(len(f.slots))
	if n := len(f.freeSlots); n > 0 {
		slot, f.freeSlots = f.freeSlots[n-1], f.freeSlots[:n-1]
	} else {
		f.slots = append(f.slots, 0)
	}
	f.versions.grow(slot)
	f.slots[slot]++
	if f.slots[slot] == 0 { // slot 0 of generation 0 would be the zero Ref
		f.slots[slot]++
	}
	return Ref{Slot: slot, Generation: f.slots[slot]}
}

// rebuild makes all pools anew.
func (f *fleet) rebuild() {
	members := slices.SortedFunc(maps.Values(f.byID), bySlot)
	var next fleet
	for _, m := range members {
		next.show(m)
	}
	f.all.store(next.all.load())
	f.every.store(next.every.load())
	f.all.serving, f.every.serving = next.all.serving, next.every.serving
	for i := range f.shards {
		f.shards[i].Store(next.shards[i].Load())
	}
}

// explainEmpty says why no endpoint that serves the name can be chosen.
func (f *fleet) explainEmpty(name string, excluded int) error {
	p := f.find(name)
	return &NoEndpointsError{
		Model: name, Endpoints: f.all.serving, Serving: p.serving, Excluded: excluded, Draining: p.serving - len(p.load()),
	}
}

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
	r.mu.Lock()
	defer r.mu.Unlock()
	f := &r.fleet
	var gone []member
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
		case !reflect.DeepEqual(m.endpoint, e):
			m.endpoint = e
			f.byID[e.ID] = m
		}
	}
	f.rebuild()
	for _, m := range gone {
		r.retire(m)
	}
	return nil
}

// Add makes an endpoint available. The error matches ErrBadEndpoint or
// ErrDuplicateEndpoint. An endpoint that is added again after its removal
// starts from scratch.
func (r *Router) Add(e Endpoint) error {
	own, err := e.prepared()
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.fleet.byID[own.ID]; ok {
		return &EndpointError{ID: own.ID, Reason: "already exists", err: ErrDuplicateEndpoint}
	}
	r.fleet.show(r.fleet.join(own))
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
	r.mu.Lock()
	defer r.mu.Unlock()
	f := &r.fleet
	old, ok := f.byID[own.ID]
	if !ok {
		return unknownEndpoint(own.ID)
	}
	next := member{old.state, own}
	f.byID[own.ID] = next
	// The endpoint stays in every pool that both descriptions belong to, so that
	// no request finds such a pool empty in between.
	stays := map[*pool]bool{}
	f.pools(own, func(p *pool) {
		stays[p] = true
		if !next.state.is(draining) {
			p.put(next)
		}
	})
	f.pools(old.endpoint, func(p *pool) {
		if !stays[p] {
			p.take(old)
			p.serving--
		}
		delete(stays, p)
	})
	for p := range stays {
		p.serving++
	}
	f.prune(old.endpoint.names())
	return nil
}

// Drain keeps new requests away from an endpoint; its open leases go on. The
// error matches ErrUnknownEndpoint.
func (r *Router) Drain(id string) error {
	return r.setDraining(id, true)
}

// Resume undoes Drain. The error matches ErrUnknownEndpoint.
func (r *Router) Resume(id string) error {
	return r.setDraining(id, false)
}

func (r *Router) setDraining(id string, drained bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ok := r.fleet.byID[id]
	if !ok {
		return unknownEndpoint(id)
	}
	if drained {
		m.state.flags.Store(draining)
		r.fleet.pools(m.endpoint, func(p *pool) { p.take(m) })
	} else {
		m.state.flags.Store(0)
		r.fleet.pools(m.endpoint, func(p *pool) { p.put(m) })
	}
	return nil
}

// Remove takes an endpoint away. Leases on it stay valid and are accounted to
// it until they end. The error matches ErrUnknownEndpoint.
func (r *Router) Remove(id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ok := r.fleet.byID[id]
	if !ok {
		return unknownEndpoint(id)
	}
	delete(r.fleet.byID, id)
	r.fleet.hide(m)
	r.retire(m)
	return nil
}

// retire ends an endpoint that has been taken out of all pools; r.mu is held.
func (r *Router) retire(m member) {
	s := m.state
	r.fleet.departing[s] = m.endpoint
	s.flags.Store(removed)
	for _, o := range r.policy.Load().endpointObservers {
		r.endpointRemoved(o, s.ref)
	}
	r.release(s)
}

func unknownEndpoint(id string) error {
	return &EndpointError{ID: id, Reason: "is unknown", err: ErrUnknownEndpoint}
}

// enter counts a request on an endpoint, unless the endpoint has been removed.
func (r *Router) enter(s *endpointState) bool {
	s.requests.Add(1)
	if !s.is(removed) {
		return true
	}
	r.leave(s)
	return false
}

// leave undoes enter. The last request to leave a removed endpoint frees its
// slot.
func (r *Router) leave(s *endpointState) {
	left := s.requests.Add(-1)
	r.changed(s)
	if left == 0 && s.is(removed) {
		r.mu.Lock()
		r.release(s)
		r.mu.Unlock()
	}
}

// release frees the slot of a removed endpoint, once; r.mu is held.
func (r *Router) release(s *endpointState) {
	if _, ok := r.fleet.departing[s]; ok && s.requests.Load() == 0 {
		delete(r.fleet.departing, s)
		r.fleet.freeSlots = append(r.fleet.freeSlots, s.ref.Slot)
	}
}
