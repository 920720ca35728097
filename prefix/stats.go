package prefix

import (
	"unsafe"

	"github.com/endpick/endpick"
)

// IndexStats is a snapshot of an [Index].
type IndexStats struct {
	Blocks  int    // different blocks
	Pairs   int    // pairs of an endpoint and a block that it holds
	Runs    int    // runs of blocks that always follow each other
	Bytes   int64  // memory taken, free parts kept for reuse among them
	Evicted uint64 // pairs forgotten for lack of room

	Endpoints []EndpointStats // by slot; without those that are gone
}

// EndpointStats is what an [Index] knows of one endpoint.
type EndpointStats struct {
	Ref      endpick.Ref
	Held     int    // blocks
	Bound    int    // the most blocks, by the config and the endpoint's KV cache
	Capacity int    // the most blocks, if the engine's reports have lowered it
	Lowered  uint64 // reports that lowered Capacity
}

// Stats returns a snapshot. It takes time in proportion to the number of
// endpoints and allocates.
func (x *Index) Stats() IndexStats {
	x.mu.Lock()
	defer x.mu.Unlock()
	all, _ := x.bytes()
	stats := IndexStats{
		Blocks:  x.trie.blocks,
		Runs:    x.trie.nodes.inUse(),
		Bytes:   all,
		Evicted: x.evicted,
	}
	for slot := range x.servers {
		s := &x.servers[slot]
		if s.gone || x.generations[slot] == 0 {
			continue
		}
		stats.Pairs += s.held
		stats.Endpoints = append(stats.Endpoints, EndpointStats{
			Ref:      endpick.Ref{Slot: uint32(slot), Generation: x.generations[slot]},
			Held:     s.held,
			Bound:    s.bound,
			Capacity: s.capacity(),
			Lowered:  s.lowered,
		})
	}
	return stats
}

// bytes returns the memory taken, and how much of it could be given up at once.
func (x *Index) bytes() (all, idle int64) {
	all, idle = x.trie.bytes()
	all += x.entries.bytes()
	all += int64(cap(x.servers)) * int64(unsafe.Sizeof(server{}))
	all += int64(cap(x.generations)) * 4
	all += int64(cap(x.leases)) * int64(unsafe.Sizeof(lease{}))
	all += int64(cap(x.path)) * int64(unsafe.Sizeof(step{}))
	return all, idle
}
