package prefix

import "hash/maphash"

// tenant is a tenant of which the index holds anything. It is known by a hash of its name,
// so that long names cost nothing.
type tenant struct {
	name     uint64
	weight   int // of computed blocks
	pending  int // weight of pending blocks
	accounts int
}

// account is what a tenant has at one endpoint and shares with no other. Whatever follows
// a tenant's piece is that tenant's, too.
type account struct {
	cache   *cache
	tenant  *tenant
	held    int
	pending int
	order   order  // of uses that have blocks of its own
	uses    int    // all uses
	votes   int    // in the epoch of the last one; see trust
	voted   uint32 // that epoch
}

type accountName struct {
	cache  *cache
	tenant *tenant
}

// accountOf returns a tenant's account at an endpoint, adding both if necessary.
func (x *Index) accountOf(c *cache, name string) *account {
	h := maphash.String(x.seed, name)
	t := x.byName.entries[h]
	if t == nil {
		t = &tenant{name: h}
		x.byName.put(h, t)
	}
	a := x.byTenant.entries[accountName{c, t}]
	if a == nil {
		a = &account{cache: c, tenant: t}
		x.byTenant.put(accountName{c, t}, a)
		t.accounts++
	}
	return a
}

// removeAccount removes an account without uses, and its tenant if it has no other.
func (x *Index) removeAccount(a *account) {
	t, c := a.tenant, a.cache
	x.byTenant.remove(accountName{c, t})
	if c.largest == a {
		c.largest = nil
	}
	if t.accounts--; t.accounts == 0 {
		x.byName.remove(t.name)
		if x.largest == t {
			x.largest = nil
		}
	}
}

// noteLargest updates who holds the most, after an account has grown. With a share of one
// half no other can exceed it; with a smaller one, this still finds the largest.
func (x *Index) noteLargest(a *account) {
	if c := a.cache; c.largest == nil || a.held > c.largest.held {
		c.largest = a
	}
	if x.largest == nil || a.tenant.weight > x.largest.weight {
		x.largest = a.tenant
	}
}

// share is a tenant's share of n.
func (x *Index) share(n int) int { return int(x.config.TenantShare * float64(n)) }

// aboveShare reports whether a tenant has more than its share of everything.
func (x *Index) aboveShare(t *tenant) bool { return t != nil && t.weight > x.share(x.weight) }

// elsewhere returns the oldest use at another endpoint, a different one each time, of a
// tenant or, if it is nil, of all; nil if there is none.
func (x *Index) elsewhere(here *cache, t *tenant) *use {
	for range x.slots {
		x.hand = (x.hand + 1) % len(x.slots)
		c := x.slots[x.hand]
		if c == nil || c == here {
			continue
		}
		if t == nil && c.order.oldest != nil {
			return c.order.oldest
		}
		if a := x.byTenant.entries[accountName{c, t}]; a != nil && a.order.oldest != nil {
			return a.order.oldest
		}
	}
	return nil
}
