package prefix

import "github.com/endpick/endpick"

// IndexStats is a snapshot of an [Index].
type IndexStats struct {
	Blocks  int    // different blocks
	Pairs   int    // pairs of an endpoint and a block that it holds or is about to compute
	Runs    int    // runs of blocks that always follow each other
	Bytes   int64  // memory taken, including free parts kept for reuse, but not what open requests take
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
	stats := IndexStats{Blocks: x.tree.blocks, Runs: x.tree.nodes.live, Bytes: x.bytes(), Evicted: x.evicted, Strays: x.strays}
	for ref, at := range x.caches.All() {
		c := *at
		stats.Pairs += c.held + c.pending + c.retained
		stats.Endpoints = append(stats.Endpoints, EndpointStats{
			Ref: ref, Held: c.held, Pending: c.pending, Kept: c.retained,
			Bound: c.size.blocks, Capacity: c.capacity(), Lowered: c.trust.lowered,
		})
	}
	return stats
}
