package precise

import (
	"math"
	"slices"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
	"github.com/endpick/endpick/prefix"
)

// Knowledge says how much a feed's events tell about its engine's cache.
type Knowledge uint8

const (
	// Nothing is known: the endpoint is matched approximately.
	Nothing Knowledge = iota
	// Partial: the engine holds what is known, and perhaps more. The approximate index
	// counts as well.
	Partial
	// Whole: the engine holds nothing but what is known.
	Whole
)

// String returns the name in lower case.
func (k Knowledge) String() string {
	return [...]string{"nothing", "partial", "whole", "unknown"}[min(k, Whole+1)]
}

// FeedConfig says whose events come over a feed. The zero value fits an engine with
// one process, whose prompts the host hashes in the zero scope.
type FeedConfig struct {
	// Rank is the data-parallel rank, if an endpoint stands for several. A match with
	// any of them counts.
	Rank int
	// Scope returns the scope in which the host hashes prompts that the engine keeps
	// under this adapter and salt. It is called with the index locked, and must be a
	// pure function. Nil: Scope{Adapter: adapter, Salt: salt}; a host that has models
	// must name the model. Where the engine separates tenants by salts, this is
	// the place to go back from a salt to its tenant.
	Scope func(adapter, salt string) prefix.Scope
}

// Feed receives what one engine process says about its cache. It begins with
// [Nothing]. It ignores everything once its endpoint has been removed, or once another
// feed with the same endpoint and rank has replaced it. Its methods are safe for
// concurrent use, but events must be given in order.
type Feed struct {
	index  *Index
	ref    endpick.EndpointRef
	rank   int
	number uint32 // in members
	scope  func(adapter, salt string) prefix.Scope

	// Guarded by Index.mu.
	closed  bool
	knows   Knowledge
	entries map[uint64]entry // the engine's blocks, by entryKey
	tails   map[uint64]*tail // of those that end within a block of ours
	walked  int              // blocks of ours because of entries, which may be long
	groups  [maxGroups]group
	count   uint32 // of groups
	full    uint32 // bits of groups that need all blocks
	grain   int    // longest block of any group, in tokens
	stats   FeedStats
	cleared uint64 // blocks that were looked at to clear tiers
}

// group is one of an engine's caches.
type group struct {
	id     int
	tokens int // in a block
	need   int // blocks of ours needed before a place to continue from there; 0: all
}

// Feed returns a new feed of an endpoint. The error is an [endpick.ConfigError], or an
// [endpick.EndpointError] that matches [endpick.ErrUnknownEndpoint] if the endpoint has
// been removed.
func (x *Index) Feed(ref endpick.EndpointRef, config FeedConfig) (*Feed, error) {
	if config.Rank < 0 {
		return nil, check.Bad("precise.FeedConfig.Rank", "is negative")
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
			f.end()
		}
	}
	number := slices.Index(x.feeds, nil)
	if number < 0 {
		number = len(x.feeds)
		x.feeds = append(x.feeds, nil)
	}
	f := &Feed{
		index: x, ref: ref, rank: config.Rank, number: uint32(number), scope: config.Scope, grain: prefix.BlockTokens,
		entries: map[uint64]entry{}, tails: map[uint64]*tail{},
	}
	x.feeds[number] = f
	e.feeds = append(e.feeds, f)
	return f, nil
}

// Apply applies events, which must be in the order in which the engine published them,
// each once. It returns how many of them store blocks whose parent is not known: then
// events have been lost, or the engine has restarted. Knowledge is then Partial, as it
// is if it was Nothing before.
func (f *Feed) Apply(events []Event) (unknown int) {
	for i := range events {
		unknown += f.apply(&events[i])
	}
	return unknown
}

// apply holds the lock for one event at most, so that requests get in between.
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
		f.knows = Partial // otherwise the parent would be known
		unknown = 1
	}
	x.fit()
	return unknown
}

// Reset forgets all events, and sets how much is known from now on: Whole after a
// restart of the engine, whose cache is empty; Partial if events have been lost;
// Nothing if no more are coming.
func (f *Feed) Reset(knows Knowledge) {
	x := f.lock()
	defer x.mu.Unlock()
	if f.closed {
		return
	}
	f.regroup(0)
	f.knows = min(knows, Whole)
	f.stats.Resets++
}

// Close ends the feed. Without another one, its endpoint is matched approximately.
func (f *Feed) Close() {
	x := f.lock()
	defer x.mu.Unlock()
	if !f.closed {
		f.end()
	}
}

// end removes a feed from its endpoint.
func (f *Feed) end() {
	f.forget(allTiers, math.MaxInt)
	f.closed, f.knows = true, Nothing
	e := f.index.endpoints.Find(f.ref)
	e.feeds = slices.DeleteFunc(slices.Clone(e.feeds), func(g *Feed) bool { return g == f })
	f.index.feeds[f.number] = nil
}

// lock locks the index when the feed's blocks are forgotten, in steps of about a millisecond. Requests get
// in between them; until all are forgotten, the endpoint is matched approximately.
func (f *Feed) lock() *Index {
	for f.index.mu.Lock(); f.step(); f.index.mu.Lock() {
		f.index.mu.Unlock()
	}
	return f.index
}

// step forgets some blocks, and reports whether there are more.
func (f *Feed) step() (more bool) {
	if f.closed {
		return false
	}
	f.knows = Nothing
	return f.forget(allTiers, min(len(f.entries)/16+1, 1024)) // the last ones free all those before them in their prompts
}

// others lets requests and other feeds have the lock every so many steps of what takes long.
func (f *Feed) others(step int) {
	if step%256 == 255 {
		f.index.mu.Unlock()
		f.index.mu.Lock()
	}
}

// empty removes all blocks from these tiers, with pauses.
func (f *Feed) empty(tiers uint8) {
	step := 0
	for key, en := range f.entries { // it may be changed in a pause
		f.drop(key, en, tiers)
		f.others(step)
		step++
	}
	f.forget(tiers, 0) // the tables
}

const allTiers = 1<<Tiers - 1

// forget removes up to so many blocks from these tiers, and reports whether there may be more. It gives
// the memory of tables that are empty back, which Go keeps.
func (f *Feed) forget(tiers uint8, most int) (more bool) {
	for key, en := range f.entries {
		if most--; most < 0 {
			return true
		}
		f.drop(key, en, tiers)
	}
	if len(f.entries) == 0 {
		f.entries, f.tails = map[uint64]entry{}, map[uint64]*tail{}
	}
	return false
}

// size is how many blocks, the engine's and ours, there are because of a feed; nil: it has ended.
func (f *Feed) size() int {
	if f == nil {
		return 0
	}
	return len(f.entries) + f.walked
}

// groupOf returns the number of an event's group, assigning the next one to a new
// group; false if there are too many.
func (f *Feed) groupOf(e *Event) (uint32, bool) {
	for i := range f.groups[:f.count] {
		if f.groups[i].id == e.Group {
			return uint32(i), true
		}
	}
	return f.count, f.count < maxGroups
}

// describe records what an event that stores blocks says about its group. Block
// lengths in other tiers say nothing about GPU memory.
func (f *Feed) describe(number uint32, e *Event, tokens int) {
	g := &f.groups[number]
	fresh := number == f.count
	if e.Tier != GPU && !fresh {
		return
	}
	next := group{id: e.Group, tokens: tokens}
	switch e.Spec {
	case Window:
		// The engine keeps whole blocks: as many as the window, without its last token,
		// may touch.
		blocks := (max(e.Window-1, 1) + tokens - 1) / tokens
		next.need = max((blocks*tokens+prefix.BlockTokens-1)/prefix.BlockTokens, 1)
	case State:
		next.need = 1
	}
	if !fresh && (g.need == 0) != (next.need == 0) {
		f.forget(allTiers, math.MaxInt) // what was recorded means something else now
		f.knows = Partial
	}
	*g = next
	f.regroup(max(f.count, number+1))
}

// regroup sets the number of groups and what follows from it.
func (f *Feed) regroup(count uint32) {
	f.count, f.full, f.grain = count, 0, prefix.BlockTokens
	for i, g := range f.groups[:count] {
		f.grain = max(f.grain, g.tokens)
		if g.need == 0 {
			f.full |= 1 << i
		}
	}
}
