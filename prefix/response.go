package prefix

import "github.com/endpick/endpick"

// respond remembers what a response has appended to its prompt; blocks are those
// of both. They are treated as a prompt that has just been computed, so that all
// limits apply: the endpoint's, the tenant's share and the memory. Nothing remains
// pending. Only the endpoint's bound stays that of the last prompt, and the capacity is not
// raised, which takes a prompt or a report.
func (x *Index) respond(ref endpick.LeaseRef, l *lease, blocks []uint64) {
	s := x.servers.Find(l.ref)
	if s == nil {
		return
	}
	if len(blocks) < l.blocks || lastOf(blocks[:l.blocks]) != l.end {
		x.strays++
		return
	}
	blocks = blocks[:min(len(blocks), l.bound, x.responseRoom())]
	if len(blocks) == 0 {
		return
	}
	l.response = uint32(l.blocks)
	x.path = x.trie.walk(x.path[:0], blocks)
	x.vouch(ref, l, s, blocks)
	x.hold(ref, l, s)
}

// lastOf returns the hash of the last block, or 0.
func lastOf(blocks []uint64) uint64 {
	if len(blocks) == 0 {
		return 0
	}
	return blocks[len(blocks)-1]
}
