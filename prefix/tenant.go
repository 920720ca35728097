package prefix

import (
	"hash/maphash"

	"github.com/endpick/endpick"
)

// tenant is one who sends requests, as long as the index holds anything of it.
// It is known by a hash of its name, so that long names cost nothing. The first
// one is the commons: what several tenants have used.
type tenant struct {
	name     uint64
	weight   int    // of what is sure
	pending  int    // weight of what is not
	accounts uint32 // the first of a ring
}

const commons = 1

// entryWeight is what an entry costs, in blocks of 8 bytes: itself and its part
// of a node, its edge and its holders. What tenants take of MaxBytes is told by
// weight, because most of the true cost is shared.
const entryWeight = 24

// account is what a tenant has at one endpoint. What several tenants have used
// moves to the account of the commons: so whatever follows an entry of a tenant
// is the tenant's too.
type account struct {
	ref        endpick.Ref
	tenant     uint32
	held       int // blocks that are sure
	pending    int // blocks that are not
	order      order
	leases     uint32 // open ones
	next, last uint32 // of the same tenant, a ring
	votes      uint32 // of the epoch voted; see trust
	voted      uint32
}

// tenantOf returns the number of a tenant.
func (x *Index) tenantOf(name string) uint32 {
	h := maphash.String(x.seed, name)
	tag := uint32(h)
	if id := x.tenantTable.find(tag, func(id uint32) bool { return x.tenants.at(id).name == h }); id != 0 {
		return id
	}
	id, t := x.tenants.take()
	t.name = h
	x.tenantTable.insert(tag, id)
	return id
}

func accountTag(slot, tenant uint32) uint32 { return edgeTag(tenant, slot, 0) }

// accountOf returns the number of a tenant's account at an endpoint.
func (x *Index) accountOf(ref endpick.Ref, tenant uint32) uint32 {
	tag := accountTag(ref.Slot, tenant)
	id := x.accountTable.find(tag, func(id uint32) bool {
		a := x.accounts.at(id)
		return a.tenant == tenant && a.ref == ref
	})
	if id != 0 {
		return id
	}
	id, a := x.accounts.take()
	a.ref, a.tenant = ref, tenant
	x.accountTable.insert(tag, id)
	t := x.tenants.at(tenant)
	if t.accounts == 0 {
		t.accounts, a.next, a.last = id, id, id
		return id
	}
	first := x.accounts.at(t.accounts)
	a.next, a.last = t.accounts, first.last
	x.accounts.at(first.last).next = id
	first.last = id
	return id
}

// common is the account of the commons at the same endpoint.
func (x *Index) common(id uint32) uint32 { return x.accountOf(x.accounts.at(id).ref, commons) }

// own gives an entry that is in no order to an account.
func (x *Index) own(en *entry, owner uint32) {
	if old := en.account; old != owner {
		en.account = owner
		x.release(old)
	}
}

// release forgets an account that has nothing, and a tenant that has none.
func (x *Index) release(id uint32) {
	a := x.accounts.at(id)
	if a.held != 0 || a.pending != 0 || a.leases != 0 {
		return
	}
	x.accountTable.remove(accountTag(a.ref.Slot, a.tenant), id)
	t := x.tenants.at(a.tenant)
	x.accounts.at(a.last).next, x.accounts.at(a.next).last = a.next, a.last
	if t.accounts == id {
		t.accounts = a.next
	}
	if t.accounts == id {
		t.accounts = 0
		if a.tenant != commons {
			x.tenantTable.remove(uint32(t.name), a.tenant)
			x.tenants.give(a.tenant)
		}
		if x.largest == a.tenant {
			x.largest = 0
		}
	}
	if s := x.servers.Find(a.ref); s != nil && s.largest == id {
		s.largest = 0
	}
	x.accounts.give(id)
}

// noteLargest remembers who has the most, when it has become more. With a share
// of one half nobody else can have more than that; with a smaller one this
// finds the worst.
func (x *Index) noteLargest(s *server, id uint32) {
	a := x.accounts.at(id)
	if s.largest == 0 || a.held > x.accounts.at(s.largest).held {
		s.largest = id
	}
	if x.largest == 0 || x.tenants.at(a.tenant).weight > x.tenants.at(x.largest).weight {
		x.largest = a.tenant
	}
}
