package prefix

import (
	"hash/maphash"

	"github.com/endpick/endpick"
)

// tenant is a tenant of which the index holds anything. It is known by a hash
// of its name, so that long names cost nothing. The first one is the commons,
// which owns what several tenants have used.
type tenant struct {
	name     uint64
	weight   int    // of sure blocks
	pending  int    // weight of pending blocks
	accounts uint32 // the first of a ring
}

const commons = 1

// entryWeight is the cost of an entry in blocks of 8 bytes: itself and its part
// of a node, its edge and its holders. A tenant's part of MaxBytes is measured
// by weight, because most of the true cost is shared.
const entryWeight = 24

// account is what a tenant has at one endpoint. What several tenants have used
// moves to the account of the commons; so whatever follows a tenant's entry is
// that tenant's, too.
type account struct {
	ref        endpick.EndpointRef
	tenant     uint32
	held       int // sure blocks
	pending    int // pending blocks
	kept       int // blocks that are kept
	order      order
	leases     uint32 // open leases
	next, last uint32 // ring of the tenant's accounts
	votes      uint32 // in the epoch voted; see trust
	voted      uint32
}

// tenantOf returns the number of a tenant, adding it if necessary.
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

// accountOf returns the number of a tenant's account at an endpoint, adding it if necessary.
func (x *Index) accountOf(ref endpick.EndpointRef, tenant uint32) uint32 {
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

// own assigns an entry that is in no order to an account.
func (x *Index) own(en *entry, owner uint32) {
	if old := en.account; old != owner {
		en.account = owner
		x.release(old)
	}
}

// release removes an empty account, and its tenant if it has no other.
func (x *Index) release(id uint32) {
	a := x.accounts.at(id)
	if a.held != 0 || a.pending != 0 || a.kept != 0 || a.leases != 0 {
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

// noteLargest updates the largest tenant after its weight has grown. With a
// share of one half no other can exceed it; with a smaller one, this still
// finds the largest.
func (x *Index) noteLargest(s *server, id uint32) {
	a := x.accounts.at(id)
	if s.largest == 0 || a.held > x.accounts.at(s.largest).held {
		s.largest = id
	}
	if x.largest == 0 || x.tenants.at(a.tenant).weight > x.tenants.at(x.largest).weight {
		x.largest = a.tenant
	}
}
