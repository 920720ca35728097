package prefix

import (
	"unsafe"

	"github.com/endpick/endpick"
)

// IndexStats is a snapshot of an [Index].
type IndexStats struct {
	Blocks  int    // different blocks
	Pairs   int    // pairs of an endpoint and a block that it holds or is about to compute
	Runs    int    // runs of blocks that always follow each other
	Bytes   int64  // memory taken, including free parts kept for reuse
	Evicted uint64 // pairs forgotten for lack of room
	Strays  uint64 // conversations reported at the end of a request that do not continue its prompt

	Endpoints []EndpointStats // by slot, without removed ones
}

// EndpointStats is what an [Index] knows about one endpoint.
type EndpointStats struct {
	Ref      endpick.EndpointRef
	Held     int    // blocks that its engine has computed
	Pending  int    // blocks of requests that the engine may not have computed yet
	Kept     int    // blocks that had to make room, but are needed by requests under way
	Bound    int    // the most blocks, from the config and the endpoint's KV cache
	Capacity int    // the most blocks, if the engine's reports have lowered it
	Lowered  uint64 // how often they have
}

// Stats returns a snapshot. It takes time in proportion to the number of
// endpoints and allocates.
func (x *Index) Stats() IndexStats {
	x.mu.Lock()
	defer x.mu.Unlock()
	all, _ := x.bytes()
	stats := IndexStats{
		Blocks:  x.trie.blocks,
		Runs:    x.trie.nodes.count,
		Bytes:   all + x.leaseBytes(),
		Evicted: x.evicted,
		Strays:  x.strays,
	}
	for ref, s := range x.servers.All() {
		stats.Pairs += s.held + s.pending + s.kept
		stats.Endpoints = append(stats.Endpoints, EndpointStats{
			Ref:      ref,
			Held:     s.held,
			Pending:  s.pending,
			Kept:     s.kept,
			Bound:    s.bound,
			Capacity: s.capacity(),
			Lowered:  s.trust.lowered,
		})
	}
	return stats
}

// leaseBytes is the memory for open requests, of which there are no more than
// leases.
func (x *Index) leaseBytes() int64 { return x.leaseSlots * (8 + int64(unsafe.Sizeof(lease{}))) }

// bytes returns the memory taken, without leases, and how much of it is idle.
func (x *Index) bytes() (all, idle int64) {
	all, idle = x.trie.bytes()
	all += x.entries.bytes() + x.tenants.bytes() + x.accounts.bytes() + x.tenantTable.bytes() + x.accountTable.bytes()
	// A little more, for the generation that tables keep of each.
	slots := int64(cap(x.slots))
	all += slots * (int64(unsafe.Sizeof(slot{})) + 8 + int64(unsafe.Sizeof(server{})))
	all += int64(cap(x.path))*int64(unsafe.Sizeof(step{})) + int64(cap(x.untidy)+cap(x.chain))*4
	return all, idle
}
