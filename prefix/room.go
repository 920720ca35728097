package prefix

import (
	"math"

	"github.com/endpick/endpick"
)

// There are two limits: the blocks of an endpoint, and the bytes of all. Pending
// blocks don't count towards the first and have their own part of the second, so
// that a prompt that no engine has computed evicts nothing.
//
// When there is no room, tenants above their share give way first, beginning with
// the one that needs the room; then the least recently used blocks do.
//
// Engines don't know tenants. Where the limit is an engine's whole cache, the
// least recently used blocks always go: remembering a tenant's blocks that the
// engine has evicted, and forgetting others that it holds, would misroute both.

// share is a tenant's share of n.
func (x *Index) share(n int) int { return int(x.config.TenantShare * float64(n)) }

// pendingPart is the divisor of MaxBytes that gives the part for pending blocks.
const pendingPart = 8

// allowance is how many more blocks of a tenant may be pending at an endpoint:
// the endpoint's bound for a tenant, as many for all together as make this a
// tenant's share, and no more than the pending part of MaxBytes.
func (x *Index) allowance(s *server, a *account, bound int) int {
	t := x.tenants.at(a.tenant)
	weight := x.pendingWeight()
	return max(0, min(
		bound-a.pending,
		int(min(float64(bound)/x.config.TenantShare, math.MaxInt32))-s.pending,
		weight-x.pending-entryWeight,
		x.share(weight)-t.pending-entryWeight,
	))
}

// pendingWeight is the weight reserved for pending blocks.
func (x *Index) pendingWeight() int { return int(x.config.MaxBytes / pendingPart / pendingBytes) }

// responseRoom is how many blocks a conversation may have for its response to
// be remembered: as many as a lone prompt may.
func (x *Index) responseRoom() int { return max(0, x.share(x.pendingWeight())-entryWeight) }

// pendingBytes is the most memory that a block's weight takes: its hash, in a
// slice that may be a quarter too long.
const pendingBytes = 10

// evict makes room at an endpoint for what an account has added.
func (x *Index) evict(s *server, slot, account uint32) {
	capacity := s.capacity()
	share := x.share(capacity)
	for s.held > capacity {
		id, by := s.order.oldest, s.held-capacity
		for _, a := range [...]uint32{account, s.largest} {
			if a == 0 || s.whole {
				continue
			}
			if over := x.accounts.at(a).held - share; over > 0 {
				id, by = x.accounts.at(a).order.oldest, min(by, over)
				break
			}
		}
		if by = x.forgettable(s, slot, id, by); by == 0 {
			continue
		}
		x.forget(s, slot, id, by)
		x.evicted += uint64(by)
	}
}

// forgettable is how much of an entry that has to make room may be forgotten at once. If
// leases vouch for it, it is kept, and takes memory: as much as an endpoint's engine may
// hold, and no more in all than pending blocks may. Beyond that, the requests that have been
// running the longest vouch for their blocks no more, and then those that have been in prefill
// the longest. The result is 0: what has to make room may be another entry then. So clients
// that read slowly, and prompts that are never computed, cost no more.
func (x *Index) forgettable(s *server, slot, id uint32, by int) int {
	by = min(by, x.size(id, slot))
	if x.entries.at(id).vouchers == 0 {
		return by
	}
	room := s.bound - s.kept
	if x.kept >= x.pendingWeight() {
		room = 0
	}
	if room > 0 {
		return min(by, room)
	}
	l := x.leases.Find(s.running.oldest)
	if l == nil {
		l = x.leases.Find(s.prefill.oldest)
	}
	x.settle(l, s)
	return 0
}

func (x *Index) size(id, slot uint32) int {
	en := x.entries.at(id)
	return int(x.endOf(en, slot) - en.start)
}

// fit evicts until the index is within MaxBytes, for a request that keeps so
// many blocks of an account.
func (x *Index) fit(account uint32, keep int) {
	for {
		x.tidy()
		all, idle := x.bytes()
		reserve := x.config.MaxBytes / pendingPart
		over := all - min(pendingBytes*int64(x.pending), reserve) - (x.config.MaxBytes - reserve)
		if over <= 0 {
			return
		}
		if idle >= over {
			x.trie.release(over)
			continue
		}
		ref, id := x.payer(account, keep)
		if id == 0 {
			return // the fixed cost of these endpoints alone exceeds the limit
		}
		s := x.servers.Find(ref)
		by := x.forgettable(s, ref.Slot, id, math.MaxInt)
		if by == 0 {
			continue
		}
		x.forget(s, ref.Slot, id, by)
		x.evicted += uint64(by)
	}
}

// payer returns the oldest entry of the account that has to give way, and its
// endpoint; 0 if there is nothing to evict.
func (x *Index) payer(account uint32, keep int) (endpick.EndpointRef, uint32) {
	a := x.accounts.at(account)
	if x.greedy(a.tenant) {
		if a.held > keep {
			return a.ref, a.order.oldest
		}
		if other := x.another(a.tenant, account); other != nil {
			return other.ref, other.order.oldest
		}
	} else if x.greedy(x.largest) {
		if other := x.another(x.largest, account); other != nil {
			return other.ref, other.order.oldest
		}
	}
	s := x.servers.Find(a.ref)
	if s.held > keep {
		return a.ref, s.order.oldest
	}
	for range x.accounts.numbers() {
		x.hand = (x.hand + 1) % x.accounts.numbers()
		if other := x.accounts.find(x.hand); other != nil && other.held > 0 && other.ref != a.ref {
			return other.ref, x.servers.Find(other.ref).order.oldest
		}
	}
	return a.ref, s.order.oldest
}

// greedy reports whether a tenant has more than its share of everything.
func (x *Index) greedy(id uint32) bool {
	return id > commons && x.tenants.at(id).weight > x.share(x.weight)
}

// another returns a nonempty account of a tenant other than this one, a
// different one each time.
func (x *Index) another(id, but uint32) *account {
	t := x.tenants.at(id)
	for first := t.accounts; ; {
		next := x.accounts.at(t.accounts).next
		t.accounts = next
		if a := x.accounts.at(next); next != but && a.held > 0 {
			return a
		}
		if next == first {
			return nil
		}
	}
}
