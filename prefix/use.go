package prefix

import (
	"cmp"

	"github.com/endpick/endpick"
)

// use is a request of which an endpoint has blocks that no later one has used: the end of
// its prompt, or all of it. The least recently used blocks of an endpoint are the last ones
// of its oldest use.
type use struct {
	account  *account
	leaf     *node  // has the last of the blocks
	epoch    uint32 // see ages
	blocks   int32  // in pieces of which this is the use
	held     int32  // of these, computed
	own      int32  // of these, not shared
	lease    endpick.LeaseRef
	open     bool // the request is under way
	response bool // what was computed is a response, with its prompt
	linked   [3]bool
	links    [3]struct{ newer, older *use }
}

// order is a list of uses.
type order struct{ newest, oldest *use }

// The indices of links in orders.
const (
	ofCache   = iota // of an endpoint: uses with computed blocks
	ofAccount        // of a tenant there: uses with blocks of its own
	ofOpen           // of an endpoint: open requests with a promise
)

// push makes a use the newest.
func (o *order) push(which int, u *use) {
	u.linked[which], u.links[which].older = true, o.newest
	if o.newest != nil {
		o.newest.links[which].newer = u
	} else {
		o.oldest = u
	}
	o.newest = u
}

func (o *order) remove(which int, u *use) {
	l := &u.links[which]
	if l.newer != nil {
		l.newer.links[which].older = l.older
	} else {
		o.newest = l.older
	}
	if l.older != nil {
		l.older.links[which].newer = l.newer
	} else {
		o.oldest = l.newer
	}
	u.linked[which], l.newer, l.older = false, nil, nil
}

// count adds blocks of a piece to all counters, or removes them. Whatever changes about a
// piece is changed between removing its blocks and adding them again.
func (x *Index) count(c *cache, p *piece, blocks int) {
	u := p.use
	a := u.account
	u.blocks += int32(blocks)
	switch p.state {
	case pending:
		c.pending += blocks
		a.pending += blocks
		x.pend(u, blocks)
	case retained:
		c.retained += blocks
		x.retained += blocks + cmp.Compare(blocks, 0)*useWeight // the piece itself counts, too
	case computed:
		c.held += blocks
		x.weight += blocks
		u.held += int32(blocks)
		if !p.shared {
			u.own += int32(blocks)
			a.held += blocks
			a.tenant.weight += blocks
		}
		if p.users > 0 {
			c.ages.busy += blocks
		} else {
			*c.ages.at(u.epoch) += blocks
		}
	}
}

// pend adds to the weight of what is pending.
func (x *Index) pend(u *use, weight int) {
	u.account.tenant.pending += weight
	x.pending += weight
}

// newUse makes a use for a request that is under way.
func (x *Index) newUse(a *account, lease endpick.LeaseRef) *use {
	u := x.uses.take()
	u.account, u.lease, u.open = a, lease, true
	a.uses++
	x.open++
	return u
}

// close ends the request of a use, after its promise.
func (x *Index) close(u *use) {
	u.open = false
	x.open--
	x.settle(u)
}

// settle removes a use from the orders in which it has nothing any more, and forgets it
// if nothing is left.
func (x *Index) settle(u *use) {
	a := u.account
	if u.own == 0 && u.linked[ofAccount] {
		a.order.remove(ofAccount, u)
		a.tenant.weight -= useWeight
	}
	if u.held == 0 && u.linked[ofCache] {
		a.cache.order.remove(ofCache, u)
		x.weight -= useWeight
	}
	if u.blocks == 0 && !u.open {
		x.uses.give(u)
		if a.uses--; a.uses == 0 {
			x.removeAccount(a)
		}
	}
}
