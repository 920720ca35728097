package queue

import "github.com/google/btree"

// band holds the requests of one priority. Tenants take turns by start-time fair
// queueing (Goyal, Vin and Cheng, 1996): each has a virtual time, which advances by
// the expected cost of a dispatched request, and the lowest goes next. When the
// actual cost is known, the tenant's time is corrected. A tenant's requests go by
// deadline, so the tag belongs to the tenant and not to the request. A tenant that
// comes back starts no earlier than those that waited: having been away earns
// nothing.
//
// A band exists while it has requests, and remembers its tenants' usage for as
// long: when nobody waits, nobody is owed a turn.
type band[T any] struct {
	priority int
	epoch    uint64                // distinguishes it from earlier bands of the priority
	now      int64                 // virtual time of the last turn
	tenants  map[string]*tenant[T] // each is in turns and heaviest, or in idle

	turns *btree.BTreeG[*tenant[T]] // tenants with requests, the next turn first
	idle  *btree.BTreeG[*tenant[T]] // tenants without requests, the least ahead first
	// Tenants with requests, the heaviest user of each bound first; nil: no bound.
	heaviest [bounds]*btree.BTreeG[*tenant[T]]
}

type tenant[T any] struct {
	name     string
	turn     int64 // virtual time of its next turn
	start    int64 // when it last began to wait: no turn is earlier
	held     amounts
	requests *btree.BTreeG[*entry[T]]
	// first and last of its requests, on which its place in the trees depends.
	first, last *entry[T]
}

// turnFirst orders tenants that have requests by who goes next.
func turnFirst[T any](a, b *tenant[T]) bool {
	if a.turn != b.turn {
		return a.turn < b.turn
	}
	return earlier(a.first, b.first)
}

// heavier orders tenants that have requests by who makes room next.
func heavier[T any](short bound) func(a, b *tenant[T]) bool {
	return func(a, b *tenant[T]) bool {
		if a.held[short] != b.held[short] {
			return a.held[short] > b.held[short]
		}
		return earlier(b.last, a.last)
	}
}

func lessAhead[T any](a, b *tenant[T]) bool {
	if a.turn != b.turn {
		return a.turn < b.turn
	}
	return a.name < b.name
}

// bandOf returns the band of a priority, creating it if necessary.
func (q *Queue[T]) bandOf(priority int) *band[T] {
	b := &band[T]{priority: priority}
	if known, ok := q.bands.Get(b); ok {
		return known
	}
	q.epochs++
	b.epoch = q.epochs
	b.tenants = map[string]*tenant[T]{}
	b.turns = btree.NewG(treeDegree, turnFirst[T])
	for short, most := range q.config.bounds() {
		if most > 0 {
			b.heaviest[short] = btree.NewG(treeDegree, heavier[T](bound(short)))
		}
	}
	b.idle = btree.NewG(treeDegree, lessAhead[T])
	return b
}

func (b *band[T]) insert(e *entry[T], nodes *btree.FreeListG[*entry[T]]) {
	t := b.tenantOf(e.item.Tenant, nodes)
	e.tenant = t
	b.change(t, func() {
		if t.first == nil {
			t.turn, t.start = max(t.turn, b.now), b.now
		}
		t.requests.ReplaceOrInsert(e)
		t.held.add(e.item.amounts(), 1)
	})
}

// tenantOf returns the tenant of a name, creating it if necessary.
func (b *band[T]) tenantOf(name string, nodes *btree.FreeListG[*entry[T]]) *tenant[T] {
	t := b.tenants[name]
	if t == nil {
		t = &tenant[T]{name: name, requests: btree.NewWithFreeListG(treeDegree, earlier[T], nodes)}
		b.tenants[t.name] = t
	}
	return t
}

// charge advances a tenant's turn, or moves it back by an overpayment. A tenant
// that neither waits nor owes anything is not remembered for it.
func (b *band[T]) charge(name string, cost int64, nodes *btree.FreeListG[*entry[T]]) {
	t := b.tenantOf(name, nodes)
	b.change(t, func() {
		if t.first == nil {
			t.turn = max(t.turn, b.now) + cost
		} else {
			t.turn = max(t.turn+cost, t.start)
		}
	})
	b.forget()
}

func (b *band[T]) detach(e *entry[T]) {
	t := e.tenant
	b.change(t, func() {
		t.requests.Delete(e)
		t.held.add(e.item.amounts(), -1)
	})
}

// change calls do, which may change a tenant's place in the trees.
func (b *band[T]) change(t *tenant[T], do func()) {
	if t.first != nil {
		b.turns.Delete(t)
		for _, heaviest := range b.heaviest {
			if heaviest != nil {
				heaviest.Delete(t)
			}
		}
	} else {
		b.idle.Delete(t)
	}
	do()
	t.first, _ = t.requests.Min()
	t.last, _ = t.requests.Max()
	if t.first == nil {
		b.idle.ReplaceOrInsert(t)
		return
	}
	b.turns.ReplaceOrInsert(t)
	for _, heaviest := range b.heaviest {
		if heaviest != nil {
			heaviest.ReplaceOrInsert(t)
		}
	}
}

// next gives the next tenant its turn and returns its request, which the caller
// must take out.
func (b *band[T]) next(config *Config) *entry[T] {
	t, _ := b.turns.Min()
	e := t.first
	e.item.epoch = b.epoch
	b.change(t, func() {
		b.now = max(b.now, t.turn)
		t.turn += costOf(config, &e.item)
	})
	return e
}

// worst returns the request of a band that makes room first if a bound is
// exceeded.
func (b *band[T]) worst(short bound) *entry[T] {
	t, _ := b.heaviest[short].Min()
	return t.last
}

// idleTenants is how many tenants without requests a band remembers at least:
// those that are furthest ahead of the others.
const idleTenants = 1024

// forget forgets the tenants without requests that would not have to wait for
// others if they came back, and the least ahead of those beyond idleTenants.
func (b *band[T]) forget() {
	for {
		t, ok := b.idle.Min()
		if !ok || t.turn > b.now && b.idle.Len() <= idleTenants+b.turns.Len() {
			return
		}
		b.idle.DeleteMin()
		delete(b.tenants, t.name)
	}
}
