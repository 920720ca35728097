package prefix

import (
	"hash/maphash"
	"math"
	"sync"

	"github.com/endpick/endpick"
)

// IndexConfig says how large an [Index] may grow. The zero value is valid.
type IndexConfig struct {
	// BlocksPerEndpoint is the most blocks to remember of one endpoint. An
	// endpoint whose KV cache is known to hold less (Endpoint.KVTokens) is
	// bounded by that. Zero: what its KV cache holds, and 65,536 where that is
	// not known. That is a million tokens, more than most engines hold: to expect
	// too much costs little, while the part of a cache that is not remembered is
	// not used.
	BlocksPerEndpoint int
	// MaxBytes is the most memory to take for all endpoints together, at least
	// 1 MiB; an eighth of it is for prompts in prefill. About 100 bytes for
	// each open request come on top. Zero: 256 MiB, enough for 1,000 endpoints
	// with 10,000 blocks each that share nothing, in prompts of at least 16
	// blocks. A prompt of a single block takes 180 bytes.
	MaxBytes int64
	// TenantShare, in (0, 1], is the share of MaxBytes, and of an endpoint's
	// blocks, up to which a tenant may displace others. A tenant may hold more
	// while there is room, but then its blocks are the first to go. The share
	// does not apply to an endpoint whose bound is the known size of its KV
	// cache: there the least recently used blocks go regardless of tenant, as
	// they do in the engine. Zero: one half.
	TenantShare float64
}

const (
	defaultBlocks   = 65_536
	defaultMaxBytes = 256 << 20
	leastMaxBytes   = 1 << 20
	defaultShare    = 0.5
)

func (c *IndexConfig) validate() error {
	if c.BlocksPerEndpoint < 0 {
		return &endpick.ConfigError{Field: "prefix.IndexConfig.BlocksPerEndpoint", Reason: "is negative"}
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = defaultMaxBytes
	}
	if c.MaxBytes < leastMaxBytes {
		return &endpick.ConfigError{Field: "prefix.IndexConfig.MaxBytes", Reason: "is less than 1 MiB"}
	}
	if !(c.TenantShare >= 0 && c.TenantShare <= 1) {
		return &endpick.ConfigError{Field: "prefix.IndexConfig.TenantShare", Reason: "is not in [0, 1]"}
	}
	if c.TenantShare == 0 {
		c.TenantShare = defaultShare
	}
	return nil
}

// bound is how many of an endpoint's blocks a request of this kind may fill,
// and whether that is its whole KV cache.
func (c *IndexConfig) bound(e *endpick.Endpoint, blockTokens float64) (n int, whole bool) {
	if e == nil || e.KVTokens <= 0 {
		if c.BlocksPerEndpoint == 0 {
			return defaultBlocks, false
		}
		return c.BlocksPerEndpoint, false
	}
	n = int(min(max(float64(e.KVTokens)/blockTokens, 1), math.MaxInt32))
	if c.BlocksPerEndpoint == 0 || n <= c.BlocksPerEndpoint {
		return n, true
	}
	return c.BlocksPerEndpoint, false
}

// Index remembers which blocks were routed to which endpoint, and expects that
// the engine there still has them in its KV cache. It is a Matcher of one
// router, which must also be its observer ([endpick.Policy] sees to that), and
// safe for concurrent use.
//
// For each endpoint, it forgets the least recently used blocks first, and the
// end of a prompt before its beginning, block by block, as an engine does. A
// match starts at the beginning of the prompt and has no gaps. When an
// endpoint is removed, everything known about it is forgotten; if it is added
// again, it starts with nothing.
//
// A request's blocks are matched as soon as it is routed, so that the next
// request with the same beginning finds them. They count as used, and displace
// others, only when the engine is known to have computed them: at the first
// token, or at the end of a completed request. Until then they are pending: at
// most as many as the endpoint may hold, in their own part of MaxBytes; of a
// longer prompt, only the beginning is remembered. If the request ends without
// being computed (failed, refused, canceled or lost before the first token),
// its blocks are forgotten again, except those that other requests share. So
// neither a client whose prompts are refused nor an endpoint that refuses
// everything changes what is known about others.
//
// While a request is under way, its prompt stays in the engine's cache, however old it is,
// and what it generates needs room there. So the index keeps such prompts, up to an eighth
// of MaxBytes, and where the size of an endpoint's KV cache is known, it tells how much of a
// match the engine has probably evicted for what is under way (Candidate.EvictedTokens).
// Such blocks are not forgotten: the engine will compute them again for whoever comes back.
//
// At the end of a completed request, the host may say how the conversation
// continues (Outcome.Blocks). The endpoint then holds prompt and response, as
// if it had computed both as a prompt, and the next turn matches up to the end
// of the response. Blocks that do not continue the request's own were not
// computed by its engine: they are ignored, and counted in IndexStats.Strays.
//
// Tenants share the blocks that they have in common. Once a tenant holds more
// than IndexConfig.TenantShare, blocks that only this tenant uses are evicted
// first; see there for where that applies.
//
// The cached tokens that an engine reports correct the number of blocks that
// it is trusted to hold.
type Index struct {
	endpick.Exclusive

	config  IndexConfig
	seed    maphash.Seed
	scratch sync.Pool // *scratch

	mu           sync.RWMutex // guards the fields below; Match only reads
	trie         trie
	entries      arena[entry]
	servers      endpick.PerEndpoint[server]
	slots        []slot // Match reads them for every holder
	leases       endpick.PerLease[lease]
	leaseSlots   int64
	tenants      arena[tenant]
	tenantTable  table
	accounts     arena[account]
	accountTable table
	path         []step
	chain        []uint32
	untidy       []uint32 // nodes that might be joined with their only child
	largest      uint32   // the tenant known to hold the most
	weight       int      // of everything sure
	pending      int      // weight of everything pending
	kept         int      // weight of everything kept
	hand         uint32   // the next account to give way to the byte limit
	evicted      uint64
	strays       uint64
}

// NewIndex returns an empty index, or an [endpick.ConfigError].
func NewIndex(config IndexConfig) (*Index, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	x := &Index{config: config, seed: maphash.MakeSeed()}
	x.scratch.New = func() any { return new(scratch) }
	x.servers.Forget = func(ref endpick.EndpointRef, s *server) { x.clear(ref.Slot, s) }
	x.leases.Forget = func(_ endpick.LeaseRef, l *lease) { x.close(l) }
	x.tenants.take() // the common tenant
	return x, nil
}

// Name is what receipts show.
func (x *Index) Name() string { return "prefix-index" }

// Observer is for the router: what listens for the index.
func (x *Index) Observer() any { return observer{x} }

// observer learns from what is routed, and how it ends.
type observer struct{ index *Index }

// Routed implements [endpick.RoutedObserver].
func (of observer) Routed(e *endpick.Event) {
	x := of.index
	x.mu.Lock()
	defer x.mu.Unlock()
	ref := e.Candidate.Ref
	if x.servers.At(ref) == nil {
		return
	}
	l := x.leases.At(e.Lease)
	if l == nil {
		return
	}
	s := x.servers.Find(ref)
	for int(ref.Slot) >= len(x.slots) {
		x.slots = append(x.slots, slot{})
	}
	x.slots[ref.Slot].generation = ref.Generation
	x.leaseSlots = max(x.leaseSlots, int64(e.Lease.Slot)+1)

	l.bound, l.whole = x.config.bound(e.Candidate.Endpoint, e.Request.TokensPerBlock())
	if s.bound == 0 {
		s.bound, s.whole = l.bound, l.whole
	}
	l.ref, l.account = ref, x.accountOf(ref, x.tenantOf(e.Request.Tenant))
	a := x.accounts.at(l.account)
	a.leases++
	blocks := e.Request.Blocks
	l.blocks, l.end, l.response = len(blocks), lastOf(blocks), noResponse
	// Pending blocks weigh on other requests like load: no more of them than the prompt is long.
	full := math.Ceil(float64(e.Request.InputTokens) / e.Request.TokensPerBlock())
	blocks = blocks[:min(len(blocks), l.bound, int(min(full, math.MaxInt32)))]
	x.path = x.trie.walk(x.path[:0], blocks)
	x.look(l, s)
	l.unseen = s.unseen(e.Candidate, e.Request.TokensPerBlock())
	if room := l.matched + x.allowance(s, a, l.bound); room < len(blocks) {
		blocks = blocks[:room]
		x.path = x.trie.walk(x.path[:0], blocks)
	}
	x.vouch(e.Lease, l, s, blocks)
	x.fit(l.account, 0)
	x.note(s, ref.Slot)
}

// FirstToken implements [endpick.FirstTokenObserver].
func (of observer) FirstToken(e *endpick.Event) {
	x := of.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if l := x.leases.Find(e.Lease); l != nil {
		x.computed(e.Lease, l)
	}
}

// Done implements [endpick.DoneObserver].
func (of observer) Done(e *endpick.Event, o *endpick.Outcome) {
	x := of.index
	x.mu.Lock()
	defer x.mu.Unlock()
	l := x.leases.Find(e.Lease)
	if l == nil {
		return
	}
	if o.Status == endpick.Completed || !e.FirstTokenAt.IsZero() {
		x.computed(e.Lease, l)
		x.vote(l, e.Request, o)
	}
	x.end(l)
	if o.Status == endpick.Completed && len(o.Blocks) > 0 {
		x.respond(e.Lease, l, o.Blocks)
	}
	x.leases.Drop(e.Lease)
	if s := x.servers.Find(e.Candidate.Ref); s != nil {
		x.note(s, e.Candidate.Ref.Slot)
	}
}

// computed records that the engine has computed the prompt of a lease.
func (x *Index) computed(ref endpick.LeaseRef, l *lease) {
	s := x.servers.Find(l.ref)
	if s == nil || !l.prefill {
		return
	}
	s.bound, s.whole = l.bound, l.whole
	if s.ages.advance(s.capacity()) {
		s.trust.review(s)
	}
	s.trust.atLeast(int(l.to))
	x.hold(ref, l, s)
	x.note(s, l.ref.Slot)
}

// hold makes sure what a lease vouches for, and makes room for it.
func (x *Index) hold(ref endpick.LeaseRef, l *lease, s *server) {
	x.confirm(ref, l, s)
	x.noteLargest(s, l.account)
	x.evict(s, l.ref.Slot, l.account)
	x.fit(l.account, int(l.to))
}

// end ends what a lease vouches for.
func (x *Index) end(l *lease) {
	if s := x.servers.Find(l.ref); s != nil && l.vouches {
		x.settle(l, s)
		x.tidy()
	}
}

// close ends a lease.
func (x *Index) close(l *lease) {
	x.end(l)
	if l.account != 0 {
		x.accounts.at(l.account).leases--
		x.release(l.account)
	}
}

// clear forgets what an endpoint holds.
func (x *Index) clear(slot uint32, s *server) {
	for _, q := range [...]*leases{&s.prefill, &s.running} {
		for l := x.leases.Find(q.newest); l != nil; l = x.leases.Find(q.newest) {
			x.settle(l, s)
		}
	}
	for s.order.oldest != 0 {
		x.forget(s, slot, s.order.oldest, x.size(s.order.oldest, slot))
	}
	x.tidy()
}

// EndpointRemoved implements [endpick.EndpointObserver].
func (of observer) EndpointRemoved(ref endpick.EndpointRef) {
	x := of.index
	x.mu.Lock()
	defer x.mu.Unlock()
	x.servers.Drop(ref)
}
