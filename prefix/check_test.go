package prefix

import (
	"fmt"
	"math"
	"slices"

	"github.com/endpick/endpick"
)

// check checks the index for inconsistencies: it goes through the tree, and counts again
// whatever is counted.
func (x *Index) check() error {
	c := newChecker(x)
	for _, check := range []func() error{c.nodes, c.promises, c.uses, c.counters, c.memory} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// checker counts what is there.
type checker struct {
	x                              *Index
	runs, room, holds, pieces      int
	caches                         map[uint32]*cache
	byUse                          map[*use]*use // what each use should have
	users                          map[*piece]uint32
	promised                       map[*use]bool
	held, pending, retained        map[*cache]int
	busy                           map[*cache]int
	epochs                         map[*cache]*[epochs]int
	accountHeld, accountPending    map[*account]int
	tenantWeight, tenantPending    map[*tenant]int
	weight, allPending, allRetains int
}

func newChecker(x *Index) *checker {
	c := &checker{
		x: x, caches: map[uint32]*cache{}, byUse: map[*use]*use{}, users: map[*piece]uint32{}, promised: map[*use]bool{},
		held: map[*cache]int{}, pending: map[*cache]int{}, retained: map[*cache]int{}, busy: map[*cache]int{}, epochs: map[*cache]*[epochs]int{},
		accountHeld: map[*account]int{}, accountPending: map[*account]int{}, tenantWeight: map[*tenant]int{}, tenantPending: map[*tenant]int{},
	}
	for ref, at := range x.caches.All() {
		c.caches[ref.Slot] = *at
		c.epochs[*at] = new([epochs]int)
	}
	return c
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
	k := c.caches[h.slot]
	if k == nil || h.head == nil || h.head.start != n.depth || h.to > n.end() {
		return fmt.Errorf("it does not begin at the beginning")
	}
	above := c.above(n, h)
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
			if one, two := *p, *q; true {
				one.start, one.down, two.start, two.down = 0, nil, 0, nil
				if one == two {
					return fmt.Errorf("pieces at %d and %d are alike", p.start, q.start)
				}
			}
		}
		above = p
		c.users[p] = 0
		want := c.byUse[u]
		if want == nil {
			want = new(use)
			c.byUse[u] = want
		}
		want.blocks += int32(blocks)
		switch p.state {
		case pending:
			c.pending[k] += blocks
			c.accountPending[a] += blocks
			c.tenantPending[a.tenant] += blocks
			c.allPending += blocks
		case retained:
			c.retained[k] += blocks
			c.allRetains += blocks + useWeight
		case computed:
			c.held[k] += blocks
			c.weight += blocks
			want.held += int32(blocks)
			if !p.shared {
				want.own += int32(blocks)
				c.accountHeld[a] += blocks
				c.tenantWeight[a.tenant] += blocks
			}
			if p.users > 0 {
				c.busy[k] += blocks
			} else {
				for i := range epochs {
					if k.ages.at(u.epoch) == &k.ages.counts[i] {
						c.epochs[k][i] += blocks
					}
				}
			}
		}
	}
	return nil
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

// above returns the piece before a hold.
func (c *checker) above(n *node, h *hold) (above *piece) {
	if n.parent == nil {
		return nil
	}
	for p := range n.parent.hold(h.slot).until(n.depth) {
		above = p
	}
	return above
}

// promises counts who needs what.
func (c *checker) promises() error {
	for key, l := range c.x.leases.All() {
		u := l.use
		if c.byUse[u] == nil {
			c.byUse[u] = new(use)
		}
		c.byUse[u].open = true
		if u.lease != key || u.account == nil {
			return fmt.Errorf("%v: lease of %v", key, u.lease)
		}
		if l.leaf == nil {
			continue
		}
		k := u.account.cache
		c.promised[u] = true
		if u.leaf == nil {
			c.tenantPending[u.account.tenant] += useWeight
			c.allPending += useWeight
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

// uses checks every use and the orders.
func (c *checker) uses() error {
	seen, uses := map[*use]int{}, map[*account]int{}
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
	for _, k := range c.caches {
		if err := walk(k.order, ofCache, func(u *use) bool { return u.held > 0 && u.account.cache == k }); err != nil {
			return err
		}
	}
	for _, k := range c.caches {
		if err := walk(k.open, ofOpen, func(u *use) bool { return c.promised[u] && u.account.cache == k }); err != nil {
			return err
		}
	}
	for name, a := range c.x.byTenant.entries {
		if err := walk(a.order, ofAccount, func(u *use) bool { return u.own > 0 && u.account == a }); err != nil {
			return err
		}
		if name != (accountName{a.cache, a.tenant}) || a.cache.gone && a.held+a.pending > 0 {
			return fmt.Errorf("account of %v is found by %v", a, name)
		}
	}
	for u, want := range c.byUse {
		uses[u.account]++
		in := 0
		if want.held > 0 {
			in = 1 << ofCache
			c.weight += useWeight
		}
		if want.own > 0 {
			in |= 1 << ofAccount
			c.tenantWeight[u.account.tenant] += useWeight
		}
		if c.promised[u] {
			in |= 1 << ofOpen
		}
		if u.blocks != want.blocks || u.held != want.held || u.own != want.own || u.open != want.open || seen[u] != in {
			return fmt.Errorf("use %+v: counted %+v, in orders %b", *u, *want, seen[u])
		}
		delete(seen, u)
	}
	for a, n := range uses {
		if a.uses != n || c.x.byTenant.entries[accountName{a.cache, a.tenant}] != a {
			return fmt.Errorf("account with %d uses: counted %d", a.uses, n)
		}
	}
	if len(seen) > 0 || len(c.byUse) != c.x.uses.live || len(uses) != len(c.x.byTenant.entries) {
		return fmt.Errorf("%d uses without blocks; %d of %d; %d accounts of %d", len(seen), len(c.byUse), c.x.uses.live, len(uses), len(c.x.byTenant.entries))
	}
	return nil
}

// counters compares what endpoints, accounts and tenants have.
func (c *checker) counters() error {
	for _, k := range c.caches {
		switch {
		case k.held != c.held[k] || k.pending != c.pending[k] || k.retained != c.retained[k]:
			return fmt.Errorf("%v: %d, %d and %d, counted %d, %d and %d", k.ref, k.held, k.pending, k.retained, c.held[k], c.pending[k], c.retained[k])
		case k.held > k.capacity():
			return fmt.Errorf("%v: %d held, capacity %d", k.ref, k.held, k.capacity())
		case k.ages.counts != *c.epochs[k] || k.ages.busy != c.busy[k]:
			return fmt.Errorf("%v: ages %v and %d, counted %v and %d", k.ref, k.ages.counts, k.ages.busy, *c.epochs[k], c.busy[k])
		case k.largest != nil && (k.largest.cache != k || c.x.byTenant.entries[accountName{k, k.largest.tenant}] != k.largest):
			return fmt.Errorf("%v: who is said to hold the most is not there", k.ref)
		}
	}
	accounts := map[*tenant]int{}
	for _, a := range c.x.byTenant.entries {
		accounts[a.tenant]++
		if a.held != c.accountHeld[a] || a.pending != c.accountPending[a] {
			return fmt.Errorf("account: %d and %d, counted %d and %d", c.accountHeld[a], c.accountPending[a], a.held, a.pending)
		}
	}
	for name, t := range c.x.byName.entries {
		if t.name != name || t.accounts != accounts[t] || t.weight != c.tenantWeight[t] || t.pending != c.tenantPending[t] {
			return fmt.Errorf("tenant %+v: %d accounts, weights %d and %d", *t, accounts[t], c.tenantWeight[t], c.tenantPending[t])
		}
	}
	if t := c.x.largest; t != nil && c.x.byName.entries[t.name] != t {
		return fmt.Errorf("the tenant that is said to hold the most is not there")
	}
	if len(accounts) != len(c.x.byName.entries) || c.x.weight != c.weight || c.x.pending != c.allPending || c.x.retained != c.allRetains {
		return fmt.Errorf("%d tenants, weights %d and %d, %d retained: counted %d, %d, %d and %d", len(accounts), c.weight, c.allPending, c.allRetains,
			len(c.x.byName.entries), c.x.weight, c.x.pending, c.x.retained)
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
	switch {
	case len(t.edges.entries) != t.nodes.live || c.runs != t.blocks || c.room != t.runs.room || c.holds != t.holds || c.pieces != x.pieces.live:
		return fmt.Errorf("%d nodes, %d blocks, room for %d and %d holds, %d pieces: counted %d, %d, %d, %d and %d", len(t.edges.entries), c.runs, c.room, c.holds, c.pieces,
			t.nodes.live, t.blocks, t.runs.room, t.holds, x.pieces.live)
	case open != x.open:
		return fmt.Errorf("%d are open, counted %d", open, x.open)
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
