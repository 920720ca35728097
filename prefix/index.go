package prefix

import (
	"cmp"
	"hash/maphash"
	"math"
	"slices"
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

// size is how many of an endpoint's blocks a request of this kind may fill.
func (c *IndexConfig) size(e *endpick.Endpoint, blockTokens float64) size {
	if e == nil || e.KVTokens <= 0 {
		return size{blocks: cmp.Or(c.BlocksPerEndpoint, defaultBlocks)}
	}
	n := int(min(max(float64(e.KVTokens)/blockTokens, 1), math.MaxInt32))
	if c.BlocksPerEndpoint == 0 || n <= c.BlocksPerEndpoint {
		return size{n, true}
	}
	return size{blocks: c.BlocksPerEndpoint}
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

	mu         sync.RWMutex // guards the fields below; Match only reads
	tree       tree
	caches     endpick.PerEndpoint[*cache]
	slots      []slot // Match reads them for every endpoint that holds anything
	leases     endpick.PerLease[lease]
	leaseSlots int64
	tenants    pool[tenant]
	byName     shrinking[uint64, *tenant]
	accounts   pool[account]
	byTenant   shrinking[accountName, *account]
	uses       pool[use]
	pieces     pool[piece]
	path       []step
	chain      []*piece
	largest    *tenant // known to hold the most
	hand       int     // the last slot that gave way to the byte limit
	weight     int     // of everything computed
	pending    int     // weight of everything pending
	retained   int     // blocks
	evicted    uint64
	strays     uint64
}

// lease is what the index remembers of a request under way.
type lease struct {
	ref     endpick.EndpointRef
	use     *use
	size    size    // of the endpoint, for this request
	promise promise // what it needs; none once it has been broken
	length  int     // blocks that were promised
	// doubtful: some of the matched blocks were not computed, so what the engine will
	// report of them says nothing about evictions.
	doubtful bool
	matched  int // blocks that were there before
	proven   int // of these, those that a prompt, not only a response, has included
	age      int // of the last matched block: how many the engine kept longer, as far as was known
	besides  int // how many others it may have needed
	// The whole prompt as it was sent: its blocks, and the hash of the last, which covers all of them.
	blocks int
	end    uint64
}

// NewIndex returns an empty index, or an [endpick.ConfigError].
func NewIndex(config IndexConfig) (*Index, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	x := &Index{config: config, seed: maphash.MakeSeed()}
	x.scratch.New = func() any { return new(scratch) }
	x.caches.Forget = func(_ endpick.EndpointRef, c **cache) { x.clear(*c) }
	x.leases.Forget = func(_ endpick.LeaseRef, l *lease) { x.close(l) }
	return x, nil
}

// Name is what receipts show.
func (x *Index) Name() string { return "prefix-index" }

// Routed implements [endpick.RoutedObserver].
func (x *Index) Routed(e *endpick.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := x.addCache(e.Candidate.Ref)
	if c == nil {
		return
	}
	l := x.leases.At(e.Lease)
	if l == nil {
		return
	}
	x.leaseSlots = max(x.leaseSlots, int64(e.Lease.Slot)+1)
	blocks, block := e.Request.Blocks, e.Request.TokensPerBlock()
	a := x.accountOf(c, e.Request.Tenant)
	*l = lease{
		ref: c.ref, use: x.newUse(a), size: x.config.size(e.Candidate.Endpoint, block),
		besides: c.besides(e.Candidate, block), blocks: len(blocks), end: lastOf(blocks),
	}
	if c.size.blocks == 0 {
		c.size = l.size
	}
	// Pending blocks weigh on other requests like load: no more of them than the prompt is long.
	full := math.Ceil(float64(e.Request.InputTokens) / block)
	blocks = blocks[:min(len(blocks), l.size.blocks, int(min(full, math.MaxInt32)))]
	x.path = x.tree.walk(x.path[:0], blocks)
	x.inspect(l, c)
	if room := l.matched + x.allowance(a, l.size.blocks); room < len(blocks) {
		blocks = blocks[:room]
		x.path = x.tree.walk(x.path[:0], blocks)
	}
	if l.length = len(blocks); l.length > 0 {
		l.promise = x.promise(c, l.use, blocks)
		c.open = append(c.open, e.Lease)
	}
	x.fit(a, 0)
	x.publish(c)
}

// inspect records what the endpoint has of the path.
func (x *Index) inspect(l *lease, c *cache) {
	for _, s := range x.path {
		h := s.hold(c.ref.Slot)
		if h == nil {
			return
		}
		for p := h.head; p != nil && p.start < s.to; p = p.down {
			l.matched = int(min(h.end(p), s.to))
			if !p.answer {
				l.proven = l.matched
			}
			if p.state == computed {
				l.age = c.ages.needed(p.use.epoch)
			} else {
				l.doubtful = true
			}
		}
	}
}

// FirstToken implements [endpick.FirstTokenObserver].
func (x *Index) FirstToken(e *endpick.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if l := x.leases.Find(e.Lease); l != nil {
		x.computed(l)
	}
}

// computed records that the engine has computed the prompt of a lease, and makes room for
// it.
func (x *Index) computed(l *lease) {
	c := x.cacheAt(l.ref)
	if c == nil || l.use.leaf != nil || l.promise.leaf == nil {
		return
	}
	c.size = l.size
	if c.ages.advance(c.capacity()) {
		c.trust.review(c)
	}
	// An engine that runs a prompt has room for it.
	if t := &c.trust; t.learned > 0 {
		t.learned = max(t.learned, l.length)
	}
	x.compute(c, l.promise, l.use)
	x.noteLargest(l.use.account)
	x.evict(l.use.account, l.length)
	x.publish(c)
}

// Done implements [endpick.DoneObserver].
func (x *Index) Done(e *endpick.Event, o *endpick.Outcome) {
	x.mu.Lock()
	defer x.mu.Unlock()
	l := x.leases.Find(e.Lease)
	if l == nil {
		return
	}
	c := x.cacheAt(l.ref)
	if c == nil {
		x.leases.Drop(e.Lease)
		return
	}
	if o.Status == endpick.Completed || !e.FirstTokenAt.IsZero() {
		x.computed(l)
		x.vote(c, l, e.Request, o)
	}
	if o.Status == endpick.Completed && len(o.Blocks) > 0 {
		x.respond(c, l, o.Blocks)
	}
	x.leases.Drop(e.Lease)
	x.publish(c)
}

// respond remembers what a response has appended to its prompt; blocks are those of both.
// They are treated as a prompt that has just been computed, so that all limits apply: the
// endpoint's, the tenant's share and the memory. Nothing remains pending. Only the
// endpoint's size stays that of the last prompt, and the capacity is not raised, which
// takes a prompt or a report.
func (x *Index) respond(c *cache, l *lease, blocks []uint64) {
	if len(blocks) < l.blocks || lastOf(blocks[:l.blocks]) != l.end {
		x.strays++
		return
	}
	// As many as a lone prompt may have.
	blocks = blocks[:min(len(blocks), l.size.blocks, max(0, x.share(x.pendingRoom())-useWeight))]
	a := l.use.account
	u := x.newUse(a)
	u.response = true
	x.path = x.tree.walk(x.path[:0], blocks)
	made := x.promise(c, u, blocks)
	x.compute(c, made, u)
	x.release(c, made)
	x.end(l)
	u.open = false
	x.settle(u)
	if len(blocks) > 0 {
		x.noteLargest(a)
		x.evict(a, len(blocks))
	}
}

// lastOf returns the hash of the last block, or 0.
func lastOf(blocks []uint64) uint64 {
	if len(blocks) == 0 {
		return 0
	}
	return blocks[len(blocks)-1]
}

// end ends what a lease has promised, or breaks the promise.
func (x *Index) end(l *lease) {
	c := x.cacheAt(l.ref)
	if c == nil || l.promise.leaf == nil {
		return
	}
	made := l.promise
	l.promise = promise{}
	if l.use.leaf == nil {
		x.pend(l.use, -useWeight)
	}
	c.open = slices.DeleteFunc(c.open, func(ref endpick.LeaseRef) bool { return x.leases.Find(ref) == l })
	x.release(c, made)
}

// close ends a lease.
func (x *Index) close(l *lease) {
	if l.use == nil {
		return
	}
	x.end(l)
	l.use.open = false
	x.settle(l.use)
}

// EndpointRemoved implements [endpick.EndpointObserver].
func (x *Index) EndpointRemoved(ref endpick.EndpointRef) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.caches.Drop(ref)
}

// clear forgets what an endpoint holds.
func (x *Index) clear(c *cache) {
	if c == nil {
		return
	}
	for len(c.open) > 0 {
		x.end(x.leases.Find(c.open[0]))
	}
	for u := c.order.oldest; u != nil; u = c.order.oldest {
		n, at, p := u.last(c.ref.Slot)
		x.drop(c, n, at, p, n.holds[at].to-p.start)
	}
}

// addCache returns what is known about an endpoint, or nil if it has been removed.
func (x *Index) addCache(ref endpick.EndpointRef) *cache {
	at := x.caches.At(ref)
	if at == nil {
		return nil
	}
	if *at == nil {
		*at = &cache{ref: ref}
		for int(ref.Slot) >= len(x.slots) {
			x.slots = append(x.slots, slot{})
		}
		x.slots[ref.Slot].generation = ref.Generation
	}
	return *at
}

// cacheAt returns what is known about an endpoint, or nil.
func (x *Index) cacheAt(ref endpick.EndpointRef) *cache {
	if c := x.caches.Find(ref); c != nil {
		return *c
	}
	return nil
}
