package queue

import "github.com/google/btree"

// band holds the requests of one priority. Tenants take turns by start-time
// fair queueing (Goyal, Vin and Cheng, 1996): each has a virtual time, which a
// dispatched request moves on by its tokens, and the lowest goes next. As a
// tenant's requests go by deadline, the tag belongs to the tenant and not to
// the request. A tenant that comes back starts no earlier than those that
// waited: having been away earns nothing.
type band[T any] struct {
	priority int
	now      int64 // the virtual time of the last turn
	tenants  map[string]*tenant[T]
	waiting  *btree.BTreeG[*tenant[T]] // those with requests, the next turn first
}

type tenant[T any] struct {
	name     string
	turn     int64 // virtual time of its next turn
	tokens   int64 // of its requests
	requests *btree.BTreeG[*entry[T]]
	first    *entry[T] // of requests; part of the order in waiting
}

// turnFirst orders tenants that have requests.
func turnFirst[T any](a, b *tenant[T]) bool {
	if a.turn != b.turn {
		return a.turn < b.turn
	}
	return earlier(a.first, b.first)
}

// insert puts an entry with its item, sequence and expiry into the queue.
func (q *Queue[T]) insert(e *entry[T]) {
	b, ok := q.bands.Get(&band[T]{priority: e.item.Priority})
	if !ok {
		b = &band[T]{
			priority: e.item.Priority,
			tenants:  map[string]*tenant[T]{},
			waiting:  btree.NewG(treeDegree, turnFirst[T]),
		}
		q.bands.ReplaceOrInsert(b)
	}
	t := b.tenants[e.item.Tenant]
	if t == nil {
		t = &tenant[T]{name: e.item.Tenant, requests: btree.NewWithFreeListG(treeDegree, earlier[T], q.nodes)}
		b.tenants[t.name] = t
	}
	if t.first == nil {
		t.turn = max(t.turn, b.now)
	}
	e.band, e.tenant, e.queued = b, t, true
	b.change(t, func() {
		t.requests.ReplaceOrInsert(e)
		t.tokens += e.item.cost()
	})
	q.times.ReplaceOrInsert(e)
	q.tokens += e.item.cost()
	q.bytes += int64(e.item.Bytes)
}

// detach takes an entry out again. Its band stays, even if it is empty; see
// tidy.
func (q *Queue[T]) detach(e *entry[T]) {
	t := e.tenant
	e.queued = false
	e.band.change(t, func() {
		t.requests.Delete(e)
		t.tokens -= e.item.cost()
	})
	q.times.Delete(e)
	q.tokens -= e.item.cost()
	q.bytes -= int64(e.item.Bytes)
}

// change does something that may change a tenant's place among those that
// wait.
func (b *band[T]) change(t *tenant[T], do func()) {
	if t.first != nil {
		b.waiting.Delete(t)
	}
	do()
	t.first, _ = t.requests.Min()
	if t.first != nil {
		b.waiting.ReplaceOrInsert(t)
	}
}

// next gives the tenant that comes next its turn and returns its request,
// which is still to be taken out.
func (b *band[T]) next() *entry[T] {
	t, _ := b.waiting.Min()
	e := t.first
	b.change(t, func() {
		b.now = t.turn
		t.turn += e.item.cost()
	})
	return e
}

// worst returns the request that a full queue drops first.
func (q *Queue[T]) worst() *entry[T] {
	var b *band[T]
	q.bands.Descend(func(lowest *band[T]) bool {
		b = lowest
		return b.waiting.Len() == 0 // emptied, and not tidied up yet
	})
	var worst *entry[T]
	var most int64
	b.waiting.Ascend(func(t *tenant[T]) bool {
		last, _ := t.requests.Max()
		if worst == nil || t.tokens > most || t.tokens == most && earlier(worst, last) {
			worst, most = last, t.tokens
		}
		return true
	})
	return worst
}

// forgottenTenants is how many tenants without requests a band remembers at
// least. They matter only while they are ahead of the others.
const forgottenTenants = 1024

// tidy removes a band that is empty, and with it what its tenants had: when
// nobody waits, nobody is owed a turn. In a band that stays it forgets tenants
// that have no requests: those that are no longer ahead, and if there are too
// many still, all of them.
func (q *Queue[T]) tidy(b *band[T]) {
	if b.waiting.Len() == 0 {
		q.bands.Delete(b)
		return
	}
	if len(b.tenants)-b.waiting.Len() < forgottenTenants+b.waiting.Len() {
		return
	}
	for _, all := range []bool{false, true} {
		for name, t := range b.tenants {
			if t.first == nil && (all || t.turn <= b.now) {
				delete(b.tenants, name)
			}
		}
		if len(b.tenants)-b.waiting.Len() < forgottenTenants {
			return
		}
	}
}
