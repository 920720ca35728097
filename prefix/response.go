package prefix

import (
	"hash/maphash"
	"time"
	"unsafe"

	"github.com/endpick/endpick"
)

// respond remembers what a response has appended to its prompt: blocks are those
// of both. It is as if the whole were a prompt that has just been computed, so
// that all bounds hold for it as for any other: the endpoint's, the tenant's share
// of it, and that of the memory. Nothing of it is pending after this. Only the
// capacity is not raised by it: that takes a prompt, or a report.
func (x *Index) respond(ref endpick.LeaseRef, l *lease, blocks []uint64, now time.Time) {
	s := x.servers.Find(l.ref)
	if s == nil {
		return
	}
	if len(blocks) < l.blocks || x.digest(blocks[:l.blocks]) != l.digest {
		x.strays++
		return
	}
	blocks = blocks[:min(len(blocks), l.bound, x.responseRoom())]
	if len(blocks) == 0 {
		return
	}
	s.bound, s.whole, l.response = l.bound, l.whole, uint32(l.blocks)
	x.path = x.trie.walk(x.path[:0], blocks)
	x.vouch(ref, l, s, blocks)
	x.hold(l, s, now)
}

// digest tells prompts apart. Only whoever knows the index's seed could make two
// of which it is the same.
func (x *Index) digest(blocks []uint64) uint64 {
	if len(blocks) == 0 {
		return 0
	}
	return maphash.Bytes(x.seed, unsafe.Slice((*byte)(unsafe.Pointer(&blocks[0])), 8*len(blocks)))
}
