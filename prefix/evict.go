package prefix

import (
	"math"

	"github.com/endpick/endpick"
)

// cache is what the index believes of one endpoint's KV cache.
type cache struct {
	ref      endpick.EndpointRef
	gone     bool  // the endpoint has been removed
	size     size  // as of the last computed request
	order    order // of uses
	open     order // of promises
	held     int   // computed blocks
	pending  int
	retained int
	largest  *account // the one known to hold the most
	ages     ages
	trust    trust
}

// size is how many of an endpoint's blocks the index may hold, and whether that is its
// whole KV cache.
type size struct {
	blocks int
	whole  bool
}

// free is how many tokens of its memory no request uses, as the engine reports; +Inf: unknown. A
// report does not know what prompts that wait or are being computed will take: as long as all of them fit,
// no less is in use. And it may be old, or count what is only cached: without other routers, no more is
// in use than what this one's requests need.
func (c *cache) free(at *endpick.Candidate, block float64) float64 {
	if at.Reported&endpick.KVUsageSignal == 0 || at.Endpoint.KVTokens <= 0 {
		return math.Inf(1)
	}
	all := float64(at.Endpoint.KVTokens)
	used, prompts := at.KVUsage*all, float64(c.ages.busy+c.pending)*block
	if prompts <= all {
		used = max(used, prompts)
	}
	if at.BatchSize() <= float64(at.InFlight.Requests) {
		used = min(used, float64(c.ages.busy+c.besides(at, block))*block)
	}
	return all - used
}

// pendingBytes is the most memory that a block takes: its hash, in a slice that may be a
// quarter too long. useWeight is the cost of a use in blocks: itself and its part of
// nodes, holds and pieces. A tenant's part of MaxBytes is measured by weight, because most
// of the true cost is shared.
const (
	pendingBytes = 10
	pendingPart  = 8 // of MaxBytes, one part of so many is for pending blocks
	useWeight    = 40
)

// pendingRoom is the weight reserved for pending blocks, and as much may be retained.
func (x *Index) pendingRoom() int { return int(x.config.MaxBytes / pendingPart / pendingBytes) }

// allowance is how many more blocks of a tenant may be pending at an endpoint: as many as
// it may hold for a tenant, as many for all together as make this a tenant's share, and no
// more than the pending part of MaxBytes.
func (x *Index) allowance(a *account, most int) int {
	return max(0, min(
		most-a.pending,
		int(min(float64(most)/x.config.TenantShare, math.MaxInt32))-a.cache.pending,
		x.pendingRoom()-x.pending-useWeight,
		x.share(x.pendingRoom())-a.tenant.pending-useWeight,
	))
}

// evict makes room at an endpoint for what an account has added, of which it keeps so many
// blocks: tenants above their share give way first, beginning with this one, then the least
// recently used blocks do. Pending blocks are not counted, so they evict nothing.
func (x *Index) evict(a *account, keep int) {
	c := a.cache
	x.noteLargest(a)
	for capacity := c.capacity(); c.held > capacity; {
		u, blocks := c.order.oldest, c.held-capacity
		for _, from := range [...]*account{a, c.largest} {
			if from != nil && from.held > x.share(capacity) && !c.size.whole {
				u, blocks = from.order.oldest, min(blocks, from.held-x.share(capacity))
				break
			}
		}
		x.shrink(u, blocks)
	}
	x.fit(a, keep)
}

// fit evicts until the index is within MaxBytes, for an account that keeps so many blocks.
// Pending blocks have a part of that for themselves.
func (x *Index) fit(a *account, keep int) {
	reserve := x.config.MaxBytes / pendingPart
	for x.bytes()-min(pendingBytes*int64(x.pending), reserve) > x.config.MaxBytes-reserve {
		u := x.victim(a, keep)
		if u == nil {
			return // the fixed cost of these endpoints alone exceeds the limit
		}
		x.shrink(u, math.MaxInt)
	}
}

// victim returns the use that has to give way to an account, or nil if there is none.
func (x *Index) victim(a *account, keep int) *use {
	most := x.largest
	if x.aboveShare(a.tenant) {
		if a.held > keep {
			return a.order.oldest
		}
		most = a.tenant
	}
	if x.aboveShare(most) {
		if u := x.elsewhere(a.cache, most); u != nil {
			return u
		}
	}
	if a.cache.held <= keep {
		if u := x.elsewhere(a.cache, nil); u != nil {
			return u
		}
	}
	return a.cache.order.oldest
}

// shrink evicts up to so many of the last blocks of a use, all of one piece. If open
// requests need them they are retained, and take memory: at most as many as the endpoint
// may hold, and no more in all than may be pending. Beyond that, the promise of the
// request that was routed first ends, and what has to make room may be another piece then.
// So clients that read slowly, and prompts that are never computed, cost no more.
func (x *Index) shrink(u *use, blocks int) {
	c := u.account.cache
	n, at, p := u.last()
	h := &n.holds[at]
	end := h.end(p)
	blocks = min(blocks, int(end-p.start))
	if p.users > 0 {
		if blocks = min(blocks, c.size.blocks-c.retained, x.pendingRoom()-x.retained); blocks <= 0 {
			x.end(x.leases.Find(c.open.oldest.lease))
			return
		}
		if start := end - uint32(blocks); start > p.start {
			p = x.cut(p, start)
		}
		x.count(c, p, -blocks)
		p.state = retained
		x.count(c, p, blocks)
		x.join(h)
		x.settle(u)
	} else {
		x.drop(c, n, at, p, uint32(blocks))
	}
	x.evicted += uint64(blocks)
}

// last returns the last computed piece of a use, its node, and the index of the hold.
func (u *use) last() (n *node, at int, last *piece) {
	for n = u.leaf; last == nil; n = n.parent {
		u.leaf = n
		at, _ = n.place(u.account.cache.ref.Slot)
		for p := range n.holds[at].until(math.MaxUint32) {
			if p.use == u && p.state == computed {
				last = p
			}
		}
	}
	return u.leaf, at, last
}
