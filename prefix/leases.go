package prefix

import "github.com/endpick/endpick"

// leases are an endpoint's leases that have promised anything, in the order of routing.
type leases struct{ newest, oldest endpick.LeaseRef }

func (x *Index) enlist(c *cache, ref endpick.LeaseRef, l *lease) {
	x.pending += useWeight
	l.use.account.tenant.pending += useWeight
	l.older = c.open.newest
	if older := x.leases.Find(l.older); older != nil {
		older.newer = ref
	} else {
		c.open.oldest = ref
	}
	c.open.newest = ref
}

func (x *Index) delist(c *cache, l *lease) {
	if newer := x.leases.Find(l.newer); newer != nil {
		newer.older = l.older
	} else {
		c.open.newest = l.older
	}
	if older := x.leases.Find(l.older); older != nil {
		older.newer = l.newer
	} else {
		c.open.oldest = l.newer
	}
}
