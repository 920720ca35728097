package prefix

import (
	"slices"

	"github.com/endpick/endpick"
)

// twin is the index as documented, block by block: for each endpoint a list of
// heads that its engine has computed, the most recent first, and for each lease
// the heads that it has promised.
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
	answer     map[string]bool   // of these, those that no prompt has included
	retained   map[string]bool   // of these, those that are not in order any more
	size       size              // as of the last computed request
	largest    string
}

type twinLease struct {
	ref      endpick.EndpointRef
	tenant   string
	promised bool
	computed bool
	prompt   []uint64
	size     size
	heads    []string // that it has promised
	matched  int
	proven   int
	doubtful bool
	since    int // when it promised this, by the twin's clock
}

const everybody = "everybody"

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

// needed reports whether an open request has promised a head.
func (t *twin) needed(ref endpick.EndpointRef, head string) bool {
	for _, l := range t.leases {
		if l.promised && l.ref == ref && slices.Contains(l.heads, head) {
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
		if !slices.Contains(e.order, h) && !t.needed(ref, h) {
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
		if (all || owner == tenant) && !slices.Contains(e.order, h) && !e.retained[h] {
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
		e = &twinEndpoint{generation: ref.Generation, owner: map[string]string{}, answer: map[string]bool{}, retained: map[string]bool{}}
		t.endpoints[ref.Slot] = e
	}
	return e
}

func (t *twin) routed(key endpick.LeaseRef, ref endpick.EndpointRef, tenant string, blocks []uint64, size size) {
	e := t.endpoint(ref)
	if e == nil {
		return
	}
	if e.size.blocks == 0 {
		e.size = size
	}
	all := heads(blocks[:min(len(blocks), size.blocks)])
	l := &twinLease{ref: ref, tenant: tenant, prompt: blocks, size: size, matched: min(t.match(ref, blocks), len(all))}
	for _, h := range all[:l.matched] {
		l.doubtful = l.doubtful || !slices.Contains(e.order, h)
		if !e.answer[h] {
			l.proven = len(h)
		}
	}
	room := min(size.blocks-t.pending(ref, tenant, false), int(float64(size.blocks)/t.share)-t.pending(ref, "", true))
	t.promise(l, all[:min(len(all), l.matched+max(room, 0))], false)
	t.leases[key] = l
}

// promise records what a lease needs from now on.
func (t *twin) promise(l *twinLease, heads []string, response bool) {
	if len(heads) == 0 {
		return
	}
	e := t.endpoints[l.ref.Slot]
	for _, h := range heads {
		if !slices.Contains(e.order, h) && !t.needed(l.ref, h) {
			e.owner[h] = l.tenant
			e.answer[h] = response
		}
	}
	t.clock++
	l.since = t.clock
	before := l.heads
	l.heads, l.promised, l.computed = heads, true, false
	t.release(l.ref, before)
}

// release forgets heads that nobody needs any more, and that have not been computed.
func (t *twin) release(ref endpick.EndpointRef, heads []string) {
	e := t.endpoints[ref.Slot]
	for _, h := range heads {
		if !slices.Contains(e.order, h) && !t.needed(ref, h) {
			e.forget(h)
		}
	}
}

func (e *twinEndpoint) forget(head string) {
	delete(e.owner, head)
	delete(e.answer, head)
	delete(e.retained, head)
}

// end ends what a lease has promised.
func (t *twin) end(l *twinLease) {
	e := t.endpoints[l.ref.Slot]
	if l.promised && e.generation == l.ref.Generation && !e.gone {
		l.promised = false
		t.release(l.ref, l.heads)
	}
}

// longest returns the lease whose promise is the oldest.
func (t *twin) longest(ref endpick.EndpointRef) (longest *twinLease) {
	for _, l := range t.leases {
		if !l.promised || l.ref != ref {
			continue
		}
		if longest == nil || l.since < longest.since {
			longest = l
		}
	}
	return longest
}

// compute records that the engine has computed the prompt of a lease, or its response.
func (t *twin) compute(l *twinLease, capacity int, response bool) {
	e := t.endpoints[l.ref.Slot]
	if !l.promised || l.computed || e.generation != l.ref.Generation || e.gone {
		return
	}
	l.computed = true
	if !response {
		e.size = l.size
	}
	for _, h := range slices.Backward(l.heads) {
		at := slices.Index(e.order, h)
		e.answer[h] = e.answer[h] && response
		switch {
		case at < 0 && !e.retained[h]:
			e.owner[h] = l.tenant
		case e.owner[h] != l.tenant:
			e.owner[h] = everybody
		}
		delete(e.retained, h)
		e.order = slices.DeleteFunc(e.order, func(o string) bool { return o == h })
		e.order = slices.Insert(e.order, 0, h)
	}
	if e.held(l.tenant) > e.held(e.largest) {
		e.largest = l.tenant
	}
	share := int(t.share * float64(capacity))
	if e.size.whole {
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
		for t.needed(l.ref, h) && len(e.retained) >= e.size.blocks {
			t.end(t.longest(l.ref))
		}
		e.order = slices.Delete(e.order, victim, victim+1)
		if t.needed(l.ref, h) {
			e.retained[h] = true
		} else {
			e.forget(h)
		}
	}
}

// respond records how the conversation continues after its prompt was computed, as if the
// whole had been a prompt.
func (t *twin) respond(l *twinLease, blocks []uint64, capacity int) {
	if n := len(l.prompt); len(blocks) < n || n > 0 && blocks[n-1] != l.prompt[n-1] {
		t.strays++
		return
	}
	t.promise(l, heads(blocks[:min(len(blocks), l.size.blocks)]), true)
	t.compute(l, capacity, true)
}

func (t *twin) removed(ref endpick.EndpointRef) {
	if e := t.endpoint(ref); e != nil {
		*e = twinEndpoint{generation: ref.Generation, gone: true}
	}
}
