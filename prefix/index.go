package prefix

import (
	"cmp"
	"hash/maphash"
	"math"
	"sync"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
)

// IndexConfig says how large an [Index] may grow. The zero value is valid.
type IndexConfig struct {
	// BlocksPerEndpoint is the most blocks to remember of one endpoint, and no more than
	// its KV cache is known to hold (Endpoint.KVTokens). Zero: what that holds, or 65,536 if
	// it is not known: a million tokens, more than most engines hold. To expect too much
	// costs little, while the part of a cache that is not remembered is not used.
	BlocksPerEndpoint int
	// MaxBytes is the most memory to take for all endpoints together, at least 1 MiB; an
	// eighth of it is for prompts in prefill. About 200 bytes for each open request come on
	// top. Zero: 256 MiB, enough for 1,000 endpoints with 10,000 blocks each that share
	// nothing, in prompts of at least 20 blocks. A prompt of a single block takes 250 bytes.
	MaxBytes int64
	// TenantShare, in (0, 1], is the share of MaxBytes, and of an endpoint's blocks, up to
	// which a tenant may displace others. A tenant may hold more while there is room, but
	// then its blocks are the first to go. The share does not apply to an endpoint whose
	// bound is the known size of its KV cache: engines don't know tenants, so there the
	// least recently used blocks go, whoever's they are. Zero: one half.
	TenantShare float64
}

const (
	defaultBlocks   = 65_536
	defaultMaxBytes = 256 << 20
	leastMaxBytes   = 1 << 20
	defaultShare    = 0.5
)

func (c *IndexConfig) validate() error {
	c.MaxBytes = cmp.Or(c.MaxBytes, defaultMaxBytes)
	c.TenantShare = cmp.Or(c.TenantShare, defaultShare)
	switch {
	case c.BlocksPerEndpoint < 0:
		return check.Bad("prefix.IndexConfig.BlocksPerEndpoint", "is negative")
	case c.MaxBytes < leastMaxBytes:
		return check.Bad("prefix.IndexConfig.MaxBytes", "is less than 1 MiB")
	case !(c.TenantShare > 0 && c.TenantShare <= 1):
		return check.Bad("prefix.IndexConfig.TenantShare", "is not in [0, 1]")
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

// Index remembers which blocks were routed to which endpoint, and expects that the engine
// there still has them in its KV cache. It is a Matcher of one router, which must also be
// its observer ([endpick.Policy] sees to that), and safe for concurrent use.
//
// All prompts are in one radix tree of blocks. Each of its nodes says how far each endpoint
// holds it; a match goes down the tree, and marks the endpoints that go no further.
//
// When a request is routed, its prompt is promised: matched from now on, but pending, so
// that it displaces nothing. At the first token, or at the end of a completed request, it
// counts as computed: used last, and others make room for it. A promise that ends earlier
// (failed, refused, canceled, lost) takes back what no other open request needs. When a
// response continues its prompt (Outcome.Blocks), both are promised and computed at once.
//
// Each endpoint has a list of the requests that it has computed, by age. A block belongs to
// the last one that used it, so an old request has only the end of its prompt, or nothing.
// To make room, the oldest one loses its last blocks, as in an engine. Where that is for lack
// of memory, or for a tenant that may not displace others, it is the oldest one of that
// tenant. Blocks that tenants have in common are nobody's.
//
// Engines keep what requests under way need, however old it is. So such blocks are retained
// when they have to make room. The cached tokens that engines report correct the number of
// blocks that an endpoint is trusted to hold. A removed endpoint takes all that it had with it.
type Index struct {
	endpick.Exclusive

	config  IndexConfig
	seed    maphash.Seed
	scratch sync.Pool // *scratch

	mu       sync.RWMutex // guards the fields below; Match only reads
	tree     tree
	caches   endpick.PerEndpoint[*cache]
	slots    []*cache // of the endpoints that hold or have held anything
	leases   endpick.PerLease[lease]
	byName   shrinking[uint64, *tenant]
	byTenant shrinking[accountName, *account]
	uses     pool[use]
	pieces   pool[piece]
	path     []step
	open     int     // leases
	largest  *tenant // known to hold the most
	hand     int     // the last slot that gave way to the byte limit
	weight   int     // of everything computed
	pending  int     // weight of everything pending
	retained int     // weight of everything retained
	evicted  uint64
	strays   uint64
}

// lease is what the index remembers of a request under way.
type lease struct {
	use     *use
	size    size   // of the endpoint, for this request
	leaf    *node  // where what it has promised ends; nil: it needs nothing any more
	length  int    // blocks that it has promised
	sent    int    // blocks of the whole prompt
	end     uint64 // hash of the last one, which covers all of them
	matched int    // blocks that were there before
	proven  int    // of these, those that a prompt, not only a response, has included
	age     int    // of the last matched block: how many the engine kept longer, as far as was known; 0: not computed
	besides int    // how many others it may have needed
}

// NewIndex returns an empty index, or an [endpick.ConfigError].
func NewIndex(config IndexConfig) (*Index, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	x := &Index{config: config, seed: maphash.MakeSeed()}
	x.scratch.New = func() any { return new(scratch) }
	x.caches.Forget = func(_ endpick.EndpointRef, c **cache) { x.clear(*c) }
	x.leases.Forget = func(_ endpick.LeaseRef, l *lease) {
		if l.use != nil {
			x.end(l)
			x.close(l.use)
		}
	}
	return x, nil
}

// Name is what receipts show.
func (x *Index) Name() string { return "prefix-index" }

// Observer is for the router: what listens for the index.
func (x *Index) Observer() any { return observer{x} }

// observer learns from what is routed, and how it ends.
type observer struct{ index *Index }

func (of observer) lock() *Index {
	of.index.mu.Lock()
	return of.index
}

// Routed implements [endpick.RoutedObserver].
func (of observer) Routed(e *endpick.Event) {
	x := of.lock()
	defer x.mu.Unlock()
	c := x.cacheOf(e.Candidate.Ref)
	if c == nil {
		return
	}
	l := x.leases.At(e.Lease)
	if l == nil {
		return
	}
	blocks, block := e.Request.Blocks, e.Request.TokensPerBlock()
	a := x.accountOf(c, e.Request.Tenant)
	*l = lease{
		use:     x.newUse(a, e.Lease),
		size:    x.config.size(e.Candidate.Endpoint, block),
		sent:    len(blocks),
		besides: c.besides(e.Candidate, block),
	}
	if l.sent > 0 {
		l.end = blocks[l.sent-1]
	}
	if c.size.blocks == 0 {
		c.size = l.size
	}
	// Pending blocks weigh on other requests like load: no more of them than the prompt is long.
	full := math.Ceil(float64(e.Request.InputTokens) / block)
	blocks = blocks[:min(len(blocks), l.size.blocks, int(min(full, math.MaxInt32)))]
	x.path = x.tree.walk(x.path[:0], blocks)
	x.inspect(c, l)
	if room := l.matched + x.allowance(a, l.size.blocks); room < len(blocks) {
		blocks = blocks[:room]
	}
	x.promise(c, l, blocks)
	x.fit(a, 0)
}

// inspect records what the endpoint has of the path.
func (x *Index) inspect(c *cache, l *lease) {
	for _, s := range x.path {
		h := s.hold(c.ref.Slot)
		if h == nil {
			return
		}
		for p := range h.until(s.to) {
			l.matched = int(min(h.end(p), s.to))
			if !p.answer {
				l.proven = l.matched
			}
			l.age = 0
			if p.state == computed {
				l.age = c.ages.needed(p.use.epoch)
			}
		}
	}
}

// FirstToken implements [endpick.FirstTokenObserver].
func (of observer) FirstToken(e *endpick.Event) {
	x := of.lock()
	defer x.mu.Unlock()
	if l := x.leases.Find(e.Lease); l != nil {
		x.computed(l)
	}
}

// computed records that the engine has computed the prompt of a lease.
func (x *Index) computed(l *lease) {
	c := l.use.account.cache
	if l.leaf == nil || l.use.leaf != nil {
		return
	}
	c.size = l.size
	if c.ages.advance(c.capacity()) {
		c.trust.review(c)
	}
	if t := &c.trust; t.learned > 0 {
		t.learned = max(t.learned, l.length) // an engine that runs a prompt has room for it
	}
	x.compute(c, l)
	x.evict(l.use.account, l.length)
}

// Done implements [endpick.DoneObserver].
func (of observer) Done(e *endpick.Event, o *endpick.Outcome) {
	x := of.lock()
	defer x.mu.Unlock()
	l := x.leases.Find(e.Lease)
	if l == nil {
		return
	}
	if c := l.use.account.cache; !c.gone {
		completed := o.Status == endpick.Completed
		if completed || !e.FirstTokenAt.IsZero() {
			x.computed(l)
			c.vote(l, e.Request, o)
		}
		if completed && len(o.Blocks) > 0 {
			x.respond(c, l, o.Blocks)
		}
	}
	x.leases.Drop(e.Lease)
}

// respond remembers what a response has appended to its prompt; blocks are those of both.
// They are treated as a prompt that has just been computed, so that all limits apply: the
// endpoint's, the tenant's share and the memory. Only the endpoint's size stays that of the
// last prompt, and the capacity is not raised, which takes a prompt or a report.
func (x *Index) respond(c *cache, l *lease, blocks []uint64) {
	if len(blocks) < l.sent || l.sent > 0 && blocks[l.sent-1] != l.end {
		x.strays++
		return
	}
	// As many as a lone prompt may have.
	blocks = blocks[:min(len(blocks), l.size.blocks, max(0, x.share(x.pendingRoom())-useWeight))]
	if len(blocks) == 0 {
		return
	}
	a := l.use.account
	next := lease{use: x.newUse(a, l.use.lease), size: l.size}
	next.use.response = true
	x.promise(c, &next, blocks)
	x.end(l) // after that, so that nothing goes which the response needs
	x.close(l.use)
	*l = next
	x.compute(c, l)
	x.evict(a, len(blocks))
}

// EndpointRemoved implements [endpick.EndpointObserver].
func (of observer) EndpointRemoved(ref endpick.EndpointRef) {
	x := of.lock()
	defer x.mu.Unlock()
	x.caches.Drop(ref)
}

// clear forgets what an endpoint holds.
func (x *Index) clear(c *cache) {
	if c == nil {
		return
	}
	for c.gone = true; c.open.oldest != nil; {
		x.end(x.leases.Find(c.open.oldest.lease))
	}
	for u := c.order.oldest; u != nil; u = c.order.oldest {
		n, at, p := u.last()
		x.drop(c, n, at, p, n.holds[at].to-p.start)
	}
}

// cacheOf returns what is known about an endpoint, or nil if it has been removed.
func (x *Index) cacheOf(ref endpick.EndpointRef) *cache {
	at := x.caches.At(ref)
	if at == nil {
		return nil
	}
	if *at == nil {
		*at = &cache{ref: ref}
		x.slots = append(x.slots, make([]*cache, max(0, int(ref.Slot)+1-len(x.slots)))...)
		x.slots[ref.Slot] = *at
	}
	return *at
}
