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
// long: when nobody waits, nobody is owed anything.
type band[T any] struct {
	priority int
	epoch    uint64                // distinguishes it from earlier bands of the priority
	now      int64                 // virtual time of the last request that was taken
	tenants  map[string]*tenant[T] // each is in waiting and heaviest, or in idle

	waiting *btree.BTreeG[*tenant[T]] // tenants with requests, the next to go first
	idle    *btree.BTreeG[*tenant[T]] // tenants without requests, the least ahead first
	// Tenants with requests, the heaviest user of each bound first; nil: no bound.
	heaviest [bounds]*btree.BTreeG[*tenant[T]]
}

type tenant[T any] struct {
	name     string
	tag      int64 // virtual time at which it goes next
	start    int64 // when it last began to wait: no tag is lower
	held     amounts
	requests *btree.BTreeG[*entry[T]]
	// first and last of its requests, on which its place in the trees depends.
	first, last *entry[T]
}

// lowestTag orders tenants that have requests by who goes next.
func lowestTag[T any](a, b *tenant[T]) bool {
	return a.tag < b.tag || a.tag == b.tag && earlier(a.first, b.first)
}

// heavier orders tenants that have requests by who makes room next.
func heavier[T any](short bound) func(a, b *tenant[T]) bool {
	return func(a, b *tenant[T]) bool {
		return a.held[short] > b.held[short] || a.held[short] == b.held[short] && earlier(b.last, a.last)
	}
}

func lessAhead[T any](a, b *tenant[T]) bool {
	return a.tag < b.tag || a.tag == b.tag && a.name < b.name
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
	b.waiting = btree.NewG(treeDegree, lowestTag[T])
	for short, most := range q.config.bounds() {
		if most > 0 {
			b.heaviest[short] = btree.NewG(treeDegree, heavier[T](bound(short)))
		}
	}
	b.idle = btree.NewG(treeDegree, lessAhead[T])
	return b
}

func (b *band[T]) insert(e *entry[T]) {
	t := b.tenantOf(e.item.Tenant)
	b.change(t, func() {
		if t.first == nil && e.tenant == nil { // else it has been waiting, and need not make room after all
			t.tag, t.start = max(t.tag, b.now), b.now
		}
		t.requests.ReplaceOrInsert(e)
		t.held.add(e.item.amounts(), 1)
	})
	e.tenant = t
}

// tenantOf returns the tenant of a name, creating it if necessary.
func (b *band[T]) tenantOf(name string) *tenant[T] {
	t := b.tenants[name]
	if t == nil {
		t = &tenant[T]{name: name, requests: btree.NewG(treeDegree, earlier[T])}
		b.tenants[t.name] = t
	}
	return t
}

// charge raises a tenant's tag, or lowers it by an overpayment. A tenant
// that neither waits nor owes anything is not remembered for it.
func (b *band[T]) charge(name string, cost int64) {
	t := b.tenantOf(name)
	b.change(t, func() {
		if t.first == nil {
			t.tag = max(t.tag, b.now) + cost
		} else {
			t.tag = max(t.tag+cost, t.start)
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
		b.waiting.Delete(t)
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
	b.waiting.ReplaceOrInsert(t)
	for _, heaviest := range b.heaviest {
		if heaviest != nil {
			heaviest.ReplaceOrInsert(t)
		}
	}
}

// dispatch charges the tenant of a request that goes now, and which the caller must take out.
func (b *band[T]) dispatch(e *entry[T], config *Config) {
	e.item.epoch = b.epoch
	b.change(e.tenant, func() {
		b.now = max(b.now, e.tenant.tag)
		e.tenant.tag += costOf(config, &e.item)
	})
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
		if !ok || t.tag > b.now && b.idle.Len() <= idleTenants+b.waiting.Len() {
			return
		}
		b.idle.DeleteMin()
		delete(b.tenants, t.name)
	}
}
