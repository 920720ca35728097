package endpick

import (
	"cmp"
	"maps"
	"slices"
	"sync"
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

// fleet holds a router's endpoints, and the pools that requests choose from. mu guards
// changes; find and pool.load take no lock.
type fleet struct {
	mu     sync.Mutex
	byID   map[string]member
	all    pool // every endpoint: for requests that name no model
	every  pool // those that list no names: for models that nobody lists
	shards [64]atomic.Pointer[map[string]*pool]

	slots     []uint32 // current generation of each slot
	freeSlots []uint32
	leaving   map[*endpointState]*Endpoint // removed, with open leases

	limited atomic.Bool // operators have set something, at least for one that was there; see limits.go
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

// search returns where in members, which are ordered by slot, a slot is or belongs.
func search(members []member, slot uint32) (int, bool) {
	return slices.BinarySearchFunc(members, slot, func(m member, slot uint32) int {
		return cmp.Compare(m.state.ref.Slot, slot)
	})
}

// put inserts an endpoint, or replaces the one in its slot.
func (p *pool) put(m member) {
	members := p.load()
	at, found := search(p.load(), m.state.ref.Slot)
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
	if at, found := search(p.load(), m.state.ref.Slot); found {
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
	if m.endpoint.limited() {
		f.limited.Store(true)
	}
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
	f.limited.Store(next.limited.Load())
	for i := range f.shards {
		f.shards[i].Store(next.shards[i].Load())
	}
}

// explainEmpty says why no endpoint that serves the model can be chosen.
func (f *fleet) explainEmpty(d *decision) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := d.req.serving()
	p := f.find(name)
	err := &NoEndpointError{
		Model: name, Endpoints: f.all.serving, Serving: p.serving, Excluded: d.excluded, Draining: p.serving - len(p.load()), Full: d.full,
	}
	if d.short > 0 && err.Excluded+err.Draining+err.Full == 0 {
		return &ContextError{Model: name, InputTokens: d.req.InputTokens, MaxContext: d.longest}
	}
	if p.serving == 0 {
		err.Others = f.names(16)
	}
	return err
}

// names returns the first of the names that endpoints serve, in order.
func (f *fleet) names(most int) (names []string) {
	for i := range f.shards {
		if pools := f.shards[i].Load(); pools != nil {
			for name, p := range *pools {
				if p.serving > 0 {
					names = append(names, name)
				}
			}
		}
	}
	slices.Sort(names)
	return names[:min(len(names), most)]
}

// member returns the endpoint that has this ID now, or an error.
func (f *fleet) member(id string) (member, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, ok := f.byID[id]
	if !ok {
		return member{}, unknownEndpoint(id)
	}
	return m, nil
}

func unknownEndpoint(id string) error {
	return &EndpointError{ID: id, Reason: "is unknown", err: ErrUnknownEndpoint}
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
// freed when the policy has been told, by the last request to leave.
func (f *fleet) retire(m member) {
	f.leaving[m.state] = m.endpoint
	m.state.flags.Store(removed)
}

// forget says that the policy has been told that an endpoint was removed.
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
