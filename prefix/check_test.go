package prefix

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/endpick/endpick"
)

// check checks the index for inconsistencies: it goes through the tree, and counts again
// whatever is counted.
func (x *Index) check() error {
	c := &checker{
		x: x, caches: map[*cache]*cache{}, accounts: map[*account]*account{}, tenants: map[*tenant]*tenant{}, uses: map[*use]*use{},
		users: map[*piece]uint32{}, promised: map[*use]bool{},
	}
	for _, at := range x.caches.All() {
		counted(c.caches, *at).ages.newest = (*at).ages.newest
	}
	for _, check := range []func() error{c.nodes, c.promises, c.order, c.counters, c.memory} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// checker has for each endpoint, account, tenant and use another one with what was counted.
type checker struct {
	x                         *Index
	runs, room, holds, pieces int
	weight, pending, retained int
	caches                    map[*cache]*cache
	accounts                  map[*account]*account
	tenants                   map[*tenant]*tenant
	uses                      map[*use]*use
	users                     map[*piece]uint32
	promised                  map[*use]bool
}

func counted[T any](all map[*T]*T, of *T) *T {
	if all[of] == nil {
		all[of] = new(T)
	}
	return all[of]
}

// nodes checks every node and piece.
func (c *checker) nodes() error {
	for e, n := range c.x.tree.edges.entries {
		c.runs += len(n.run)
		c.room += cap(n.run)
		c.holds += cap(n.holds)
		most := n.depth
		switch {
		case e != edge{n.parent, uint64(n.depth), n.run[0]}:
			return fmt.Errorf("node at %d is found by %v", n.depth, e)
		case cap(n.run)/4 > len(n.run):
			return fmt.Errorf("node at %d: a run of %d has room for %d", n.depth, len(n.run), cap(n.run))
		case n.parent == nil && n.depth != 0 || n.parent != nil && (n.depth <= n.parent.depth || n.depth > n.parent.end()):
			return fmt.Errorf("node at %d is not within its parent", n.depth)
		case !slices.IsSortedFunc(n.holds, func(a, b hold) int { return int(a.slot) - int(b.slot) }):
			return fmt.Errorf("node at %d: endpoints out of order", n.depth)
		}
		for i := range n.holds {
			h := &n.holds[i]
			most = max(most, h.to)
			if n.parent != nil {
				if up := n.parent.hold(h.slot); up == nil || up.to < n.depth {
					return fmt.Errorf("node at %d: %d holds it without its head", n.depth, h.slot)
				}
			}
			if err := c.hold(n, h); err != nil {
				return fmt.Errorf("node at %d, endpoint %d: %w", n.depth, h.slot, err)
			}
		}
		if most != n.end() {
			return fmt.Errorf("node at %d ends at %d, and is held to %d", n.depth, n.end(), most)
		}
	}
	return nil
}

// hold checks the pieces of a hold, and counts them.
func (c *checker) hold(n *node, h *hold) error {
	k := c.x.slots[h.slot]
	if c.caches[k] == nil || h.head == nil || h.head.start != n.depth || h.to > n.end() {
		return fmt.Errorf("it does not begin at the beginning")
	}
	var above *piece
	if n.parent != nil {
		above = n.parent.hold(h.slot).last(n.depth)
	}
	for p := range h.until(math.MaxUint32) {
		c.pieces++
		blocks := int(h.end(p)) - int(p.start)
		u := p.use
		a := u.account
		switch {
		case blocks <= 0:
			return fmt.Errorf("piece at %d has %d blocks", p.start, blocks)
		case a == nil || a.cache != k:
			return fmt.Errorf("piece at %d: the use is another endpoint's, or has been given back", p.start)
		case p.state != computed && p.users == 0:
			return fmt.Errorf("piece at %d: nobody needs it", p.start)
		case above != nil && (p.state < above.state || p.users > above.users):
			return fmt.Errorf("piece at %d has more than what comes before it", p.start)
		case above != nil && p.state == computed && k.age(u) < k.age(above.use):
			return fmt.Errorf("piece at %d was used after what comes before it", p.start)
		case above != nil && p.state == computed && p.shared && !above.shared:
			return fmt.Errorf("piece at %d is shared, and not what comes before it", p.start)
		case above != nil && p.state == computed && !p.shared && !above.shared && a.tenant != above.use.account.tenant:
			return fmt.Errorf("piece at %d follows another tenant's", p.start)
		}
		if q := p.down; q != nil {
			like := *p
			if like.start, like.down = q.start, q.down; like == *q {
				return fmt.Errorf("pieces at %d and %d are alike", p.start, q.start)
			}
		}
		above = p
		c.users[p] = 0
		c.add(p, blocks)
	}
	return nil
}

// add counts the blocks of a piece.
func (c *checker) add(p *piece, blocks int) {
	u, a, t := counted(c.uses, p.use), counted(c.accounts, p.use.account), counted(c.tenants, p.use.account.tenant)
	k := c.caches[p.use.account.cache]
	u.blocks += int32(blocks)
	switch p.state {
	case pending:
		k.pending += blocks
		a.pending += blocks
		t.pending += blocks
		c.pending += blocks
	case retained:
		k.retained += blocks
		c.retained += blocks + useWeight
	case computed:
		k.held += blocks
		c.weight += blocks
		u.held += int32(blocks)
		if !p.shared {
			u.own += int32(blocks)
			a.held += blocks
			t.weight += blocks
		}
		if p.users > 0 {
			k.ages.busy += blocks
		} else {
			*k.ages.at(p.use.epoch) += blocks
		}
	}
}

// age is how many uses of an endpoint are newer.
func (k *cache) age(of *use) (n int) {
	for u := k.order.newest; u != nil; u = u.links[ofCache].older {
		if u == of {
			return n
		}
		n++
	}
	return -1
}

// promises counts who needs what.
func (c *checker) promises() error {
	for key, l := range c.x.leases.All() {
		u := l.use
		counted(c.uses, u).open = true
		if u.lease != key || u.account == nil {
			return fmt.Errorf("%v: lease of %v", key, u.lease)
		}
		if l.leaf == nil {
			continue
		}
		k := u.account.cache
		c.promised[u] = true
		if u.leaf == nil {
			counted(c.tenants, u.account.tenant).pending += useWeight
			c.pending += useWeight
		}
		for n, to := l.leaf, uint32(l.length); n != nil; n, to = n.parent, n.depth {
			h := n.hold(k.ref.Slot)
			if h == nil || h.to < to {
				return fmt.Errorf("%v: what it has promised is not there", key)
			}
			for p := range h.until(to) {
				if c.users[p]++; h.end(p) > to {
					return fmt.Errorf("%v: it ends within a piece", key)
				}
			}
		}
	}
	for p, users := range c.users {
		if p.users != users {
			return fmt.Errorf("piece at %d: %d need it, counted %d", p.start, users, p.users)
		}
	}
	return nil
}

// order checks every use and the orders.
func (c *checker) order() error {
	seen := map[*use]int{}
	walk := func(o order, which int, has func(*use) bool) error {
		var newer *use
		for u := o.newest; u != nil; newer, u = u, u.links[which].older {
			seen[u] |= 1 << which
			if u.links[which].newer != newer || !has(u) || !u.linked[which] {
				return fmt.Errorf("a use is out of order %d", which)
			}
		}
		if o.oldest != newer {
			return fmt.Errorf("the oldest of order %d is another", which)
		}
		return nil
	}
	var errs []error
	for k := range c.caches {
		errs = append(errs, walk(k.order, ofCache, func(u *use) bool { return u.held > 0 && u.account.cache == k }))
		errs = append(errs, walk(k.open, ofOpen, func(u *use) bool { return c.promised[u] && u.account.cache == k }))
	}
	for _, a := range c.x.byTenant.entries {
		errs = append(errs, walk(a.order, ofAccount, func(u *use) bool { return u.own > 0 && u.account == a }))
	}
	for u, want := range c.uses {
		counted(c.accounts, u.account).uses++
		in := 0
		if want.held > 0 {
			in = 1 << ofCache
			c.weight += useWeight
		}
		if want.own > 0 {
			in |= 1 << ofAccount
			counted(c.tenants, u.account.tenant).weight += useWeight
		}
		if c.promised[u] {
			in |= 1 << ofOpen
		}
		if u.blocks != want.blocks || u.held != want.held || u.own != want.own || u.open != want.open || seen[u] != in {
			return fmt.Errorf("use %+v: counted %+v, in orders %b", *u, *want, seen[u])
		}
		delete(seen, u)
	}
	if len(seen) > 0 || len(c.uses) != c.x.uses.live {
		return fmt.Errorf("%d uses without blocks; %d of %d", len(seen), len(c.uses), c.x.uses.live)
	}
	return errors.Join(errs...)
}

// counters compares what endpoints, accounts and tenants have.
func (c *checker) counters() error {
	for k, want := range c.caches {
		switch {
		case k.held != want.held || k.pending != want.pending || k.retained != want.retained:
			return fmt.Errorf("%v: %d, %d and %d, counted %d, %d and %d", k.ref, k.held, k.pending, k.retained, want.held, want.pending, want.retained)
		case k.held > k.capacity():
			return fmt.Errorf("%v: %d held, capacity %d", k.ref, k.held, k.capacity())
		case k.ages.counts != want.ages.counts || k.ages.busy != want.ages.busy:
			return fmt.Errorf("%v: ages %+v, counted %+v", k.ref, k.ages, want.ages)
		case k.largest != nil && (k.largest.cache != k || c.x.byTenant.entries[accountName{k, k.largest.tenant}] != k.largest):
			return fmt.Errorf("%v: who is said to hold the most is not there", k.ref)
		}
	}
	for name, a := range c.x.byTenant.entries {
		counted(c.tenants, a.tenant).accounts++
		want := c.accounts[a]
		if want == nil || name != (accountName{a.cache, a.tenant}) || a.held != want.held || a.pending != want.pending || a.uses != want.uses {
			return fmt.Errorf("account %+v is found by %v, counted %+v", a, name, want)
		}
	}
	for name, t := range c.x.byName.entries {
		want := c.tenants[t]
		if want == nil || t.name != name || t.accounts != want.accounts || t.weight != want.weight || t.pending != want.pending {
			return fmt.Errorf("tenant %+v, counted %+v", *t, want)
		}
	}
	x := c.x
	if t := x.largest; t != nil && x.byName.entries[t.name] != t {
		return fmt.Errorf("the tenant that is said to hold the most is not there")
	}
	got := [...]int{len(x.byTenant.entries), len(x.byName.entries), x.weight, x.pending, x.retained}
	if want := [...]int{len(c.accounts), len(c.tenants), c.weight, c.pending, c.retained}; got != want {
		return fmt.Errorf("accounts, tenants, weights of all, and of what is pending or retained: %v, counted %v", got, want)
	}
	return nil
}

// memory compares what is counted as taken.
func (c *checker) memory() error {
	x, t := c.x, &c.x.tree
	open := 0
	for range x.leases.All() {
		open++
	}
	for _, run := range t.runs.spare {
		c.room += cap(run)
	}
	got := [...]int{len(t.edges.entries), t.blocks, t.runs.room, t.holds, x.pieces.live, x.open}
	if want := [...]int{t.nodes.live, c.runs, c.room, c.holds, c.pieces, open}; got != want {
		return fmt.Errorf("nodes, blocks, room for them, holds, pieces and open requests: %v, counted %v", got, want)
	}
	return nil
}

// cacheAt returns what is known about an endpoint, or nil.
func (x *Index) cacheAt(ref endpick.EndpointRef) *cache {
	if c := x.caches.Find(ref); c != nil {
		return *c
	}
	return nil
}
