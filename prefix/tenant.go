package prefix

import (
	"cmp"
	"hash/maphash"
	"slices"
)

// tenant is a tenant of which the index holds anything. It is known by a hash of its name,
// so that long names cost nothing.
type tenant struct {
	name     uint64
	weight   int        // of computed blocks
	pending  int        // weight of pending blocks
	accounts []*account // by slot
	hand     int        // the last account that gave way
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
	voted   uint32 // epoch of the last vote, from 1; see trust
}

// accountOf returns a tenant's account at an endpoint, adding both if necessary.
func (x *Index) accountOf(c *cache, name string) *account {
	h := maphash.String(x.seed, name)
	t := x.tenantNames[h]
	if t == nil {
		t = x.tenants.take()
		t.name = h
		x.tenantNames[h] = t
	}
	at, ok := t.find(c)
	if ok && t.accounts[at].cache == c {
		return t.accounts[at]
	}
	a := x.accounts.take()
	a.cache, a.tenant = c, t
	t.accounts = slices.Insert(t.accounts, at, a)
	return a
}

// find returns the index of the tenant's account at an endpoint, or where to insert it.
func (t *tenant) find(c *cache) (int, bool) {
	return slices.BinarySearchFunc(t.accounts, c, func(a *account, c *cache) int {
		if a.cache == c {
			return 0
		}
		return cmp.Or(cmp.Compare(a.cache.ref.Slot, c.ref.Slot), cmp.Compare(a.cache.ref.Generation, c.ref.Generation))
	})
}

// removeAccount removes an account without uses, and its tenant if it has no other.
func (x *Index) removeAccount(a *account) {
	t, c := a.tenant, a.cache
	at, _ := t.find(c)
	t.accounts = slices.Delete(t.accounts, at, at+1)
	if c.largest == a {
		c.largest = nil
	}
	if x.accounts.give(a); len(t.accounts) > 0 {
		return
	}
	delete(x.tenantNames, t.name)
	if x.largest == t {
		x.largest = nil
	}
	x.tenants.give(t)
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

// aboveShare reports whether a tenant has more than its share of everything.
func (x *Index) aboveShare(t *tenant) bool { return t != nil && t.weight > x.share(x.weight) }

// another returns an account of the tenant other than this one that has blocks, a
// different one each time, or nil.
func (t *tenant) another(but *account) *account {
	for range t.accounts {
		t.hand = (t.hand + 1) % len(t.accounts)
		if a := t.accounts[t.hand]; a != but && a.held > 0 {
			return a
		}
	}
	return nil
}
