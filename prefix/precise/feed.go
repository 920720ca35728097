package precise

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

// Knowledge says how far the events of a feed tell what its engine holds.
type Knowledge uint8

const (
	// Nothing is known: the endpoint is matched approximately.
	Nothing Knowledge = iota
	// Partial: what is known is there, and there may be more. The approximate index is
	// believed as well.
	Partial
	// Whole: what is not known is not there.
	Whole
)

// String returns the name in lower case.
func (k Knowledge) String() string {
	switch k {
	case Nothing:
		return "nothing"
	case Partial:
		return "partial"
	case Whole:
		return "whole"
	}
	return "unknown"
}

// FeedConfig says whose events come over a feed. The zero value is that of an engine
// of one process, whose prompts the host hashes in the zero scope.
type FeedConfig struct {
	// Rank is the data-parallel rank, of an endpoint that has several and is not itself
	// one. A match with any of them counts.
	Rank int
	// Scope returns the scope in which the host hashes prompts that the engine keeps
	// under this adapter and salt. It is called with the index locked, and must be a
	// pure function. Nil: Scope{Adapter: adapter, Salt: salt}; a host that has models
	// must name the model. Where tenants are told apart in the engine by salts, this is
	// the place to go back from a salt to its tenant.
	Scope func(adapter, salt string) prefix.Scope
}

// Feed takes in what one engine process says of its cache. It begins with [Nothing]; a
// feed whose endpoint has been removed, or which was succeeded by another with its
// endpoint and rank, ignores what it is told. Its methods are safe for concurrent use,
// but events must be given in their order.
type Feed struct {
	index  *Index
	ref    endpick.Ref
	rank   int
	number uint32 // in sets
	scope  func(adapter, salt string) prefix.Scope

	// Guarded by the index.
	closed  bool
	knows   Knowledge
	entries map[uint64]entry // the engine's blocks, by entryKey
	groups  [maxGroups]group
	count   uint32 // of groups
	full    uint32 // bits of groups that need all blocks
	grain   int    // tokens in the longest block of any group
	stats   FeedStats
}

// group is one of an engine's caches.
type group struct {
	id     int
	tokens int // in a block
	need   int // blocks of ours before a place that are needed to go on from there; 0: all
}

// Feed returns a new feed of an endpoint. The error is an [endpick.ConfigError], or an
// [endpick.EndpointError] that matches [endpick.ErrUnknownEndpoint] if the endpoint has
// been removed.
func (x *Index) Feed(ref endpick.Ref, config FeedConfig) (*Feed, error) {
	if config.Rank < 0 {
		return nil, &endpick.ConfigError{Field: "precise.FeedConfig.Rank", Reason: "is negative"}
	}
	if config.Scope == nil {
		config.Scope = func(adapter, salt string) prefix.Scope { return prefix.Scope{Adapter: adapter, Salt: salt} }
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.endpoints.At(ref)
	if e == nil {
		return nil, endpick.ErrUnknownEndpoint
	}
	for _, f := range e.feeds {
		if f.rank == config.Rank {
			x.close(e, f)
			break
		}
	}
	number, ok := x.freeNumber()
	if !ok {
		return nil, &endpick.ConfigError{Field: "precise.Index", Reason: "has a million feeds already"}
	}
	f := &Feed{index: x, ref: ref, rank: config.Rank, number: number, scope: config.Scope, entries: map[uint64]entry{}, grain: prefix.BlockTokens}
	x.feeds[number] = f
	e.feeds = append(e.feeds, f)
	return f, nil
}

func (x *Index) freeNumber() (uint32, bool) {
	if n := len(x.freeFeeds); n > 0 {
		number := x.freeFeeds[n-1]
		x.freeFeeds = x.freeFeeds[:n-1]
		return number, true
	}
	if len(x.feeds) == maxFeeds {
		return 0, false
	}
	x.feeds = append(x.feeds, nil)
	return uint32(len(x.feeds) - 1), true
}

// Apply takes in events, which must be in the order in which the engine published
// them, each once. It returns how many of them store blocks after one that is not known:
// events have been lost, or the engine has restarted. What is known is Partial then, as
// it is where nothing was known before.
func (f *Feed) Apply(events []Event) (unknown int) {
	for i := range events {
		unknown += f.apply(&events[i])
	}
	return unknown
}

// apply holds the lock for one event, so that requests get in between.
func (f *Feed) apply(e *Event) (unknown int) {
	x := f.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if f.closed {
		return 0
	}
	if f.knows == Nothing {
		f.knows = Partial
	}
	f.stats.Events++
	switch {
	case e.Tier >= Tiers || e.Kind > Cleared:
		f.stats.Ignored++
	case e.Kind == Cleared:
		f.clear(e.Tier)
	case e.Kind == Removed:
		f.remove(e)
	case !f.stored(e):
		f.stats.Unknown++
		f.knows = Partial // or this would be known
		unknown = 1
	}
	x.fit()
	return unknown
}

// Reset forgets all that the feed has told, and says how much is known from now on:
// Whole after a restart of the engine, whose cache is empty; Partial where events have
// been lost; Nothing where none come any more.
func (f *Feed) Reset(knows Knowledge) {
	x := f.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if f.closed {
		return
	}
	f.forgetAll()
	f.regroup(0)
	f.knows = min(knows, Whole)
	f.stats.Resets++
}

// Close ends the feed. Without another one, its endpoint is matched approximately.
func (f *Feed) Close() {
	x := f.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.endpoints.Find(f.ref); e != nil && !f.closed {
		x.close(e, f)
	}
}

// close takes a feed out of its endpoint.
func (x *Index) close(e *endpoint, f *Feed) {
	for i := range e.feeds {
		if e.feeds[i] == f {
			e.feeds = append(e.feeds[:i:i], e.feeds[i+1:]...)
			break
		}
	}
	x.end(f)
}

func (x *Index) end(f *Feed) {
	f.forgetAll()
	f.regroup(0)
	x.unvouchFeed(f.number)
	f.closed, f.knows, f.entries = true, Nothing, nil
	x.feeds[f.number] = nil
	x.freeFeeds = append(x.freeFeeds, f.number)
}

// forgetAll forgets the engine's blocks.
func (f *Feed) forgetAll() {
	f.index.entries -= len(f.entries)
	for key, en := range f.entries {
		f.drop(&en)
		delete(f.entries, key)
	}
}

// groupOf returns the number of an event's group, which is that of the next one if it
// is new; false if there are too many.
func (f *Feed) groupOf(e *Event) (uint32, bool) {
	for i := range f.groups[:f.count] {
		if f.groups[i].id == e.Group {
			return uint32(i), true
		}
	}
	return f.count, f.count < maxGroups
}

// describe notes what an event that stores blocks says of its group. The lengths of
// blocks in other tiers say nothing about what can be found in GPU memory.
func (f *Feed) describe(number uint32, e *Event, tokens int) {
	g := &f.groups[number]
	fresh := number == f.count
	if e.Tier != GPU && !fresh {
		return
	}
	next := group{id: e.Group, tokens: tokens}
	switch e.Spec {
	case Window:
		// The engine keeps whole blocks: as many as the window without the token at its
		// end may touch.
		blocks := (max(e.Window-1, 1) + tokens - 1) / tokens
		next.need = max((blocks*tokens+prefix.BlockTokens-1)/prefix.BlockTokens, 1)
	case State:
		next.need = 1
	}
	if !fresh && *g == next {
		return
	}
	if !fresh && (g.need == 0) != (next.need == 0) {
		f.forgetAll() // what was noted meant something else
		f.knows = Partial
	}
	*g = next
	f.regroup(max(f.count, number+1))
}

// regroup says how many groups there are, and works out what follows from them.
func (f *Feed) regroup(count uint32) {
	if f.windowed() {
		f.index.windowed--
	}
	f.count = count
	f.full, f.grain = 0, prefix.BlockTokens
	for i := range f.groups[:f.count] {
		g := &f.groups[i]
		f.grain = max(f.grain, g.tokens)
		if g.need == 0 {
			f.full |= 1 << i
		}
	}
	if f.windowed() {
		f.index.windowed++
	}
}

// windowed reports whether none of the engine's layers need the whole prompt.
func (f *Feed) windowed() bool { return f.full == 0 && f.count > 0 }
