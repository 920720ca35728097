package prefix

import "github.com/endpick/endpick"

// lease is what the index remembers of a routed request. Slots are those of
// the router's leases.
type lease struct {
	generation uint32
	open       bool
	// doubtful: some of the matched blocks were put there by a request that
	// was still in its prefill. What the engine will report of them says
	// nothing about evictions.
	doubtful bool
	server   endpick.Ref
	pending  uint32 // the first of its entries with blocks that are not sure
	blocks   int    // of the prompt that are remembered
	matched  int    // of them that were there before
	distance int    // blocks used more recently than the last matched one, and it
}

// lease returns the record of a lease that the index knows, or nil.
func (x *Index) lease(key endpick.LeaseRef) *lease {
	if int64(key.Slot) >= int64(len(x.leases)) {
		return nil
	}
	l := &x.leases[key.Slot]
	if !l.open || l.generation != key.Generation {
		return nil
	}
	return l
}

// open begins the record of a lease.
func (x *Index) open(key endpick.LeaseRef) *lease {
	for int64(key.Slot) >= int64(len(x.leases)) {
		x.leases = append(x.leases, lease{})
	}
	l := &x.leases[key.Slot]
	if l.open {
		x.confirm(l) // the end of the lease before it was never told
	}
	*l = lease{generation: key.Generation, open: true}
	return l
}

// mayVouch reports whether an entry has room for the blocks of one more lease:
// not if another one vouches for some of them.
func (x *Index) mayVouch(id, leaseID uint32) bool {
	by := x.entries.at(id).lease
	return by == 0 || by == leaseID
}

// vouch notes that what an entry holds from now on beyond its sure blocks is
// there only because a lease's request was routed here.
func (x *Index) vouch(id, leaseID uint32) {
	if en := x.entries.at(id); en.lease == 0 {
		x.pend(id, en, leaseID, 0)
	}
}

// pend puts an entry into the list of a lease: after another entry, or first.
func (x *Index) pend(id uint32, en *entry, leaseID, after uint32) {
	en.lease = leaseID
	en.prevPending = after
	link := &x.leases[leaseID-1].pending
	if after != 0 {
		link = &x.entries.at(after).nextPending
	}
	en.nextPending = *link
	*link = id
	if en.nextPending != 0 {
		x.entries.at(en.nextPending).prevPending = id
	}
}

func (x *Index) unpend(id uint32, en *entry) {
	if en.prevPending != 0 {
		x.entries.at(en.prevPending).nextPending = en.nextPending
	} else {
		x.leases[en.lease-1].pending = en.nextPending
	}
	if en.nextPending != 0 {
		x.entries.at(en.nextPending).prevPending = en.prevPending
	}
	en.lease, en.nextPending, en.prevPending = 0, 0, 0
}

// settle says that all blocks of an entry are sure.
func (x *Index) settle(id uint32, en *entry, held uint32) {
	if en.lease != 0 {
		x.unpend(id, en)
	}
	en.sure = held
}

// confirm says that the engine has computed the prompt of a lease.
func (x *Index) confirm(l *lease) {
	for l.pending != 0 {
		id := l.pending
		x.settle(id, x.entries.at(id), uint32(x.heldBy(id)))
	}
}

// retract forgets the blocks that only a failed request vouched for. Where
// other prompts have gone on from there, they stay: those requests will tell.
func (x *Index) retract(l *lease) {
	for l.pending != 0 {
		id := l.pending
		en := x.entries.at(id)
		held := x.heldBy(id)
		if en.below > 0 {
			x.settle(id, en, uint32(held))
			continue
		}
		x.shorten(id, held-int(en.sure))
	}
}
