package endpick

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// member is an endpoint of the fleet: its description, which Router.Update
// replaces, and its state, which lives as long as the endpoint.
type member struct {
	state    *endpointState
	endpoint *Endpoint
}

func bySlot(a, b member) int { return cmp.Compare(a.state.ref.Slot, b.state.ref.Slot) }

// fleet holds a router's endpoints, and the pools that requests choose from. mu guards
// changes; a request takes no lock, unless it is the first after a change.
type fleet struct {
	mu     sync.Mutex
	byID   map[string]member
	latest atomic.Pointer[pools] // nil: not made since the last change

	slots     []uint32 // current generation of each slot
	freeSlots []uint32
	leaving   map[*endpointState]*Endpoint // removed, with open leases
}

// pools are the endpoints by what they serve. They never change, but are made anew after each
// change of the fleet, so that no request finds one half changed.
type pools struct {
	all     pool             // every endpoint: for requests that name no model
	every   pool             // those that list no names: for models that nobody lists
	named   map[string]*pool // those that list the name, or none
	limited bool             // operators have set something; see limits.go
}

// pool is a set of endpoints to choose from, ordered by slot.
type pool struct {
	members []member // without those that are drained
	serving int      // with them
}

// changed says that the pools are to be made anew; mu is held.
func (f *fleet) changed() { f.latest.Store(nil) }

// pools are those of the endpoints that there are now.
func (f *fleet) pools() *pools {
	if p := f.latest.Load(); p != nil {
		return p
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	next := f.latest.Load()
	if next != nil {
		return next // another request has made them
	}
	next = &pools{named: map[string]*pool{}}
	for _, m := range slices.SortedFunc(maps.Values(f.byID), bySlot) {
		next.limited = next.limited || m.endpoint.limited()
		next.all.add(m)
		if m.endpoint.servesAll() {
			next.every.add(m)
			for _, p := range next.named {
				p.add(m)
			}
		}
		for _, name := range m.endpoint.names() {
			p := next.named[name]
			if p == nil {
				p = &pool{slices.Clone(next.every.members), next.every.serving}
				next.named[name] = p
			}
			p.add(m)
		}
	}
	f.latest.Store(next)
	return next
}

// describe replaces the description of an endpoint; mu is held. Engines say often what they have in memory, which
// changes no pool.
func (f *fleet) describe(m member, e *Endpoint) {
	old, next := m.endpoint, f.latest.Load()
	m.endpoint = e
	f.byID[e.ID] = m
	if next == nil || old.limited() != e.limited() || !slices.Equal(old.names(), e.names()) {
		f.changed()
		return
	}
	replaced := func(p pool) pool {
		if at, ok := search(p.members, m.state.ref.Slot); ok {
			p.members = slices.Clone(p.members)
			p.members[at] = m
		}
		return p
	}
	next = &pools{all: replaced(next.all), every: replaced(next.every), named: maps.Clone(next.named), limited: next.limited}
	names := e.names()
	if e.servesAll() {
		names = slices.Collect(maps.Keys(next.named))
	}
	for _, name := range names {
		p := replaced(*next.named[name])
		next.named[name] = &p
	}
	f.latest.Store(next)
}

func (p *pool) add(m member) {
	p.serving++
	if !m.state.is(draining) {
		p.members = append(p.members, m)
	}
}

// find returns the pool of a model or adapter; the empty name is the pool of all endpoints.
func (p *pools) find(name string) *pool {
	if name == "" {
		return &p.all
	}
	if of := p.named[name]; of != nil {
		return of
	}
	return &p.every
}

// search returns where in members, which are ordered by slot, a slot is or belongs.
func search(members []member, slot uint32) (int, bool) {
	return slices.BinarySearchFunc(members, slot, func(m member, slot uint32) int {
		return cmp.Compare(m.state.ref.Slot, slot)
	})
}

// join gives a validated, cloned endpoint a slot; mu is held.
func (f *fleet) join(e *Endpoint) {
	f.byID[e.ID] = member{&endpointState{ref: f.takeSlot(), idHash: Salt(e.ID)}, e}
}

// takeSlot returns a free slot with a new generation.
func (f *fleet) takeSlot() EndpointRef {
	slot := uint32(len(f.slots))
	if n := len(f.freeSlots); n > 0 {
		slot, f.freeSlots = f.freeSlots[n-1], f.freeSlots[:n-1]
	} else {
		f.slots = append(f.slots, 0)
	}
	f.slots[slot]++
	if f.slots[slot] == 0 { // slot 0 of generation 0 would be the zero EndpointRef
		f.slots[slot]++
	}
	return EndpointRef{Slot: slot, Generation: f.slots[slot]}
}

// explainEmpty says why no endpoint that serves the model can be chosen.
func (p *pools) explainEmpty(d *decision) error {
	name := d.req.serving()
	of := p.find(name)
	err := &NoEndpointError{
		Model: name, Endpoints: p.all.serving, Serving: of.serving,
		Excluded: d.excluded, Draining: of.serving - len(of.members), Full: d.full,
	}
	if d.short > 0 && err.Excluded+err.Draining+err.Full == 0 {
		return &ContextError{Model: name, InputTokens: d.req.InputTokens, MaxContext: d.longest}
	}
	if of.serving == 0 {
		others := slices.Sorted(maps.Keys(p.named))
		err.Others = others[:min(len(others), 16)]
	}
	return err
}

// member returns the endpoint that has this ID now, or an error.
func (f *fleet) member(id string) (member, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.get(id)
}

// get is member while mu is held.
func (f *fleet) get(id string) (member, error) {
	m, ok := f.byID[id]
	if !ok {
		return member{}, &EndpointError{ID: id, Reason: "is unknown", err: ErrUnknownEndpoint}
	}
	return m, nil
}

// without moves the candidates of a decision whose ID is not in ids to the front, and returns them.
func (f *fleet) without(d *decision, ids []string) []Candidate {
	if len(ids) == 0 {
		return d.candidates
	}
	f.mu.Lock()
	d.left = append(d.left[:0], make([]bool, len(f.slots))...)
	for _, id := range ids {
		if m, known := f.byID[id]; known {
			d.left[m.state.ref.Slot] = true
		}
	}
	f.mu.Unlock()
	return Keep(d.candidates, func(c *Candidate) bool { return !d.left[c.Ref.Slot] })
}

// enter counts a request on an endpoint, unless the endpoint has been removed, or has as many as it may
// have at most; 0: any number.
func (f *fleet) enter(s *endpointState, most int) bool {
	if most == 0 {
		s.requests.Add(1)
	}
	for most > 0 {
		n := s.requests.Load()
		if int(n) >= most {
			return false
		}
		if s.requests.CompareAndSwap(n, n+1) {
			break
		}
	}
	if !s.is(removed) {
		return true
	}
	f.leave(s)
	return false
}

// leave undoes enter. The last request to leave a removed endpoint frees its
// slot.
func (f *fleet) leave(s *endpointState) {
	if s.requests.Add(-1) == 0 && s.is(removed) {
		f.mu.Lock()
		f.release(s)
		f.mu.Unlock()
	}
}

// retire ends an endpoint that has been taken out of all pools; mu is held. Its slot is
// freed when the policy knows, by the last request to leave.
func (f *fleet) retire(m member) {
	f.leaving[m.state] = m.endpoint
	m.state.flags.Store(removed)
}

// forget says that the policy knows that an endpoint was removed.
func (f *fleet) forget(s *endpointState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.flags.Store(removed | forgotten)
	f.release(s)
}

// release frees the slot of a removed endpoint, once, unless there are requests or the policy
// does not know yet; mu is held.
func (f *fleet) release(s *endpointState) {
	if _, ok := f.leaving[s]; ok && s.is(forgotten) && s.requests.Load() == 0 {
		delete(f.leaving, s)
		f.freeSlots = append(f.freeSlots, s.ref.Slot)
	}
}
