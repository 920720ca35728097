package prefix

import (
	"slices"

	"github.com/endpick/endpick"
)

// twin is the index as documented, block by block: for each endpoint a list of
// heads that its engine has computed, the most recent first, and for each lease
// the heads for which it vouches.
type twin struct {
	share     float64
	most      int // blocks of an endpoint that the index may hold
	endpoints map[uint32]*twinEndpoint
	leases    map[endpick.LeaseRef]*twinLease
	strays    uint64
	clock     int
}

type twinEndpoint struct {
	generation uint32
	gone       bool
	order      []string          // heads, most recent first
	owner      map[string]string // tenants of heads that are held or pending
	told       map[string]bool   // of these, those that no prompt has included
	kept       map[string]bool   // of these, those that are not in order any more
	bound      int               // as of the last computed request
	largest    string
}

type twinLease struct {
	ref      endpick.EndpointRef
	tenant   string
	vouches  bool
	prefill  bool
	prompt   []uint64
	bound    int
	whole    bool
	heads    []string // for which it vouches
	matched  int
	proven   int
	doubtful bool
	since    int // when its prefill began, or it ran, by the twin's clock
	response int // blocks before the response for which it vouches; −1: for a prompt
}

const twinCommons = "everybody"

func newTwin() *twin {
	return &twin{endpoints: map[uint32]*twinEndpoint{}, leases: map[endpick.LeaseRef]*twinLease{}}
}

// heads names every block by everything up to it, with a byte each.
func heads(blocks []uint64) []string {
	name := make([]byte, len(blocks))
	for i, b := range blocks {
		name[i] = byte(b)
	}
	all := make([]string, len(blocks))
	for i := range blocks {
		all[i] = string(name[:i+1])
	}
	return all
}

// vouched reports whether a lease vouches for a head.
func (t *twin) vouched(ref endpick.EndpointRef, head string) bool {
	for _, l := range t.leases {
		if l.vouches && l.ref == ref && slices.Contains(l.heads, head) {
			return true
		}
	}
	return false
}

func (t *twin) match(ref endpick.EndpointRef, blocks []uint64) int {
	e := t.endpoints[ref.Slot]
	if e == nil || e.gone || e.generation != ref.Generation {
		return 0
	}
	n := 0
	for _, h := range heads(blocks) {
		if !slices.Contains(e.order, h) && !t.vouched(ref, h) {
			break
		}
		n++
	}
	return n
}

// pending counts the pending blocks of a tenant, or of all.
func (t *twin) pending(ref endpick.EndpointRef, tenant string, all bool) (n int) {
	e := t.endpoints[ref.Slot]
	for h, owner := range e.owner {
		if (all || owner == tenant) && !slices.Contains(e.order, h) && !e.kept[h] {
			n++
		}
	}
	return n
}

func (e *twinEndpoint) held(tenant string) (n int) {
	for _, h := range e.order {
		if e.owner[h] == tenant {
			n++
		}
	}
	return n
}

func (t *twin) endpoint(ref endpick.EndpointRef) *twinEndpoint {
	e := t.endpoints[ref.Slot]
	if e != nil && (e.generation > ref.Generation || e.generation == ref.Generation && e.gone) {
		return nil
	}
	if e == nil || e.generation < ref.Generation {
		e = &twinEndpoint{generation: ref.Generation, owner: map[string]string{}, told: map[string]bool{}, kept: map[string]bool{}}
		t.endpoints[ref.Slot] = e
	}
	return e
}

func (t *twin) routed(key endpick.LeaseRef, ref endpick.EndpointRef, tenant string, blocks []uint64, bound int, whole bool) {
	e := t.endpoint(ref)
	if e == nil {
		return
	}
	all := heads(blocks[:min(len(blocks), bound)])
	l := &twinLease{ref: ref, tenant: tenant, prompt: blocks, bound: bound, whole: whole, response: -1, matched: min(t.match(ref, blocks), len(all))}
	for _, h := range all[:l.matched] {
		l.doubtful = l.doubtful || !slices.Contains(e.order, h)
		if !e.told[h] {
			l.proven = len(h)
		}
	}
	room := min(bound-t.pending(ref, tenant, false), int(float64(bound)/t.share)-t.pending(ref, "", true))
	l.heads = all[:min(len(all), l.matched+max(room, 0))]
	l.vouches, l.prefill = len(l.heads) > 0, len(l.heads) > 0
	for _, h := range l.heads[min(l.matched, len(l.heads)):] {
		e.owner[h] = tenant
	}
	t.clock++
	l.since = t.clock
	t.leases[key] = l
}

// settle ends what a lease vouches for.
func (t *twin) settle(l *twinLease) {
	e := t.endpoints[l.ref.Slot]
	if !l.vouches || e.generation != l.ref.Generation || e.gone {
		return
	}
	l.vouches, l.prefill = false, false
	for _, h := range l.heads {
		if !slices.Contains(e.order, h) && !t.vouched(l.ref, h) {
			delete(e.owner, h)
			delete(e.told, h)
			delete(e.kept, h)
		}
	}
}

// longest returns the lease that has vouched for the longest time for what has been computed
// or, if there is none, for what has not.
func (t *twin) longest(ref endpick.EndpointRef) (longest *twinLease) {
	for _, l := range t.leases {
		if !l.vouches || l.ref != ref {
			continue
		}
		if longest == nil || longest.prefill && !l.prefill || longest.prefill == l.prefill && l.since < longest.since {
			longest = l
		}
	}
	return longest
}

// computed records that the engine has computed the prompt of a lease.
func (t *twin) computed(l *twinLease, capacity int) {
	e := t.endpoints[l.ref.Slot]
	if !l.prefill || e.generation != l.ref.Generation || e.gone {
		return
	}
	l.prefill = false
	t.clock++
	l.since = t.clock
	e.bound = l.bound
	for _, h := range slices.Backward(l.heads) {
		at := slices.Index(e.order, h)
		if at < 0 || l.response < 0 {
			e.told[h] = l.response >= 0 && len(h) > l.response
		}
		switch {
		case at < 0:
			e.owner[h] = l.tenant
		case e.owner[h] != l.tenant:
			e.owner[h] = twinCommons
		}
		delete(e.kept, h)
		e.order = slices.DeleteFunc(e.order, func(o string) bool { return o == h })
		e.order = slices.Insert(e.order, 0, h)
	}
	if e.held(l.tenant) > e.held(e.largest) {
		e.largest = l.tenant
	}
	share := int(t.share * float64(capacity))
	if l.whole {
		share = len(e.order) // nobody has more
	}
	for len(e.order) > capacity {
		victim := len(e.order) - 1
		for _, who := range []string{l.tenant, e.largest} {
			if e.held(who) > share {
				for e.owner[e.order[victim]] != who {
					victim--
				}
				break
			}
		}
		h := e.order[victim]
		for t.vouched(l.ref, h) && len(e.kept) >= e.bound {
			t.settle(t.longest(l.ref))
		}
		e.order = slices.Delete(e.order, victim, victim+1)
		if t.vouched(l.ref, h) {
			e.kept[h] = true
		} else {
			delete(e.owner, h)
			delete(e.told, h)
		}
	}
}

// responded records how the conversation continues after its prompt was
// computed, as if the whole had been a prompt.
func (t *twin) responded(l *twinLease, blocks []uint64, capacity int) {
	if n := len(l.prompt); len(blocks) < n || n > 0 && blocks[n-1] != l.prompt[n-1] {
		t.strays++
		return
	}
	l.response = len(l.prompt)
	l.heads = heads(blocks[:min(len(blocks), l.bound)])
	l.vouches, l.prefill = len(l.heads) > 0, len(l.heads) > 0
	t.computed(l, capacity)
	t.settle(l)
}

func (t *twin) removed(ref endpick.EndpointRef) {
	if e := t.endpoint(ref); e != nil {
		*e = twinEndpoint{generation: ref.Generation, gone: true}
	}
}
