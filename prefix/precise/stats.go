package precise

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

// Stats is a snapshot of an [Index].
type Stats struct {
	Blocks    int    // distinct ones that engines hold
	Bytes     int64  // the most memory that events may take
	Overflows uint64 // feeds that were forgotten for lack of room
	Feeds     []FeedStats
	// Approximate is the index for endpoints without events, and for requests under way.
	Approximate prefix.IndexStats
}

// FeedStats is what an [Index] knows about one feed.
type FeedStats struct {
	Ref     endpick.EndpointRef
	Rank    int
	Knows   Knowledge
	Blocks  int    // the engine's own, in any tier, of each group
	Groups  int    // caches of the engine
	Events  uint64 // received
	Stored  uint64 // blocks stored
	Unknown uint64 // events that store blocks after an unknown one
	Missed  uint64 // unknown blocks that were removed, or stored without tokens
	Ignored uint64 // events that are invalid, or about a ninth group
	Resets  uint64

	// What became of the requests at the endpoint while anything was known of its cache.
	// Confirmed are prompts of which events had named the first or the last block when the response
	// ended, Unconfirmed the others. Textual came without token ids: no event matches them.
	// If none is ever confirmed, the events are of no use: the ids are not the engine's, or its
	// blocks are in another scope.
	Confirmed, Unconfirmed, Textual uint64
}

// Stats returns a snapshot. It takes time in proportion to the number of endpoints and
// allocates.
func (x *Index) Stats() Stats {
	approx := x.approx.Stats()
	x.mu.Lock()
	defer x.mu.Unlock()
	s := Stats{
		Blocks: len(x.store.nodes), Bytes: x.store.bytes, Overflows: x.overflows, Approximate: approx,
	}
	for _, f := range x.feeds {
		if f == nil {
			continue
		}
		fs := f.stats
		fs.Ref, fs.Rank, fs.Knows = f.ref, f.rank, f.knows
		fs.Blocks, fs.Groups = len(f.entries), int(f.count)
		s.Feeds = append(s.Feeds, fs)
	}
	return s
}
