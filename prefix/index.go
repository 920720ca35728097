package prefix

import (
	"math"
	"slices"
	"sync"

	"github.com/endpick/endpick"
)

// IndexConfig says how large an [Index] may grow. The zero value is valid.
type IndexConfig struct {
	// BlocksPerEndpoint is the most blocks to remember of one endpoint. An
	// endpoint whose KV cache is known to hold less (Endpoint.KVTokens) is
	// bounded by that. Zero: what its KV cache holds, and 10,000 where that is
	// not known.
	BlocksPerEndpoint int
	// MaxBytes is the most memory to take for all endpoints together, at
	// least 1 MiB. Zero: 256 MiB, enough for 1,000 endpoints of 10,000 blocks
	// each of which nothing is shared.
	MaxBytes int64
}

const (
	defaultBlocks   = 10_000
	defaultMaxBytes = 256 << 20
	leastMaxBytes   = 1 << 20
)

func (c *IndexConfig) validate() error {
	if c.BlocksPerEndpoint < 0 {
		return &ConfigError{Field: "IndexConfig.BlocksPerEndpoint", Reason: "is negative"}
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = defaultMaxBytes
	}
	if c.MaxBytes < leastMaxBytes {
		return &ConfigError{Field: "IndexConfig.MaxBytes", Reason: "is less than 1 MiB"}
	}
	return nil
}

// bound is how many blocks of an endpoint a request of this kind may fill.
func (c *IndexConfig) bound(e *endpick.Endpoint, blockTokens float64) int {
	if e == nil || e.KVTokens <= 0 {
		if c.BlocksPerEndpoint == 0 {
			return defaultBlocks
		}
		return c.BlocksPerEndpoint
	}
	n := int(min(max(float64(e.KVTokens)/blockTokens, 1), math.MaxInt32))
	if c.BlocksPerEndpoint == 0 {
		return n
	}
	return min(n, c.BlocksPerEndpoint)
}

// Index remembers which blocks were routed to which endpoint, and expects that
// the engine there still has them in its KV cache. It is a Matcher of one
// router, which must also be its observer ([endpick.Policy] sees to that), and
// safe for concurrent use.
//
// Of each endpoint it forgets the least recently used blocks first, and the
// end of a prompt before its head, block by block, as an engine does. A match
// is a contiguous head. What is known of an endpoint ends with it: one that is
// added again begins with nothing.
//
// A request's blocks are remembered when it is routed, so that the next one
// with the same head finds them. If it then ends without a sign that the
// engine computed its prompt (failed, canceled or lost before the first
// token), the blocks that only it had brought are forgotten again: an endpoint
// that refuses everything must not attract by what it never computed.
//
// Cached tokens that an engine reports correct the number of blocks that it is
// trusted to hold: fewer than expected lower it, by a quarter at most; an old
// match that was all there raises it again by a sixteenth. See correct.go.
type Index struct {
	config  IndexConfig
	scratch sync.Pool // *scratch

	mu          sync.Mutex // guards what follows
	trie        trie
	entries     arena[entry]
	servers     []server // by slot
	generations []uint32 // of servers; on its own, because Match reads it for every holder
	leases      []lease  // by slot
	path        []step
	hand        int // the server that pays next for the byte bound
	evicted     uint64
}

// NewIndex returns an empty index, or a [ConfigError].
func NewIndex(config IndexConfig) (*Index, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	x := &Index{config: config}
	x.scratch.New = func() any { return new(scratch) }
	return x, nil
}

// Name is what receipts show.
func (x *Index) Name() string { return "prefix-index" }

// Routed implements [endpick.RoutedObserver].
func (x *Index) Routed(e *endpick.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	ref := e.Candidate.Ref
	s := x.server(ref)
	if s == nil {
		return
	}
	l := x.open(e.Lease)
	l.server = ref
	s.bound = x.config.bound(e.Candidate.Endpoint, e.Request.Block())
	blocks := e.Request.Blocks
	if s.learned > 0 {
		s.learned = max(s.learned, len(blocks)) // to run it, the engine must hold it
	}
	blocks = blocks[:min(len(blocks), s.capacity())]
	s.ages.advance(s.capacity())
	x.path = x.trie.walk(x.path[:0], blocks)
	x.look(l, ref.Slot)
	x.insert(s, ref.Slot, blocks, e.Lease.Slot+1)
	l.blocks = len(blocks)
	x.evict(s, s.capacity())
	x.fit(s, len(blocks))
}

// server returns the state for an endpoint, beginning anew if the slot had
// another one before; nil if this one is gone.
func (x *Index) server(ref endpick.Ref) *server {
	if ref.Generation == 0 {
		return nil
	}
	for int64(ref.Slot) >= int64(len(x.servers)) {
		x.servers = append(x.servers, server{})
		x.generations = append(x.generations, 0)
	}
	s := &x.servers[ref.Slot]
	switch known := x.generations[ref.Slot]; {
	case known == ref.Generation:
		if s.gone {
			return nil
		}
	case known != 0 && int32(ref.Generation-known) < 0:
		return nil
	default:
		x.clear(s)
		x.generations[ref.Slot] = ref.Generation
	}
	return s
}

// clear forgets an endpoint.
func (x *Index) clear(s *server) {
	for s.oldest != 0 {
		x.shorten(s.oldest, x.heldBy(s.oldest))
	}
	*s = server{}
}

// look notes what the endpoint holds of the path before the request is
// inserted.
func (x *Index) look(l *lease, slot uint32) {
	s := &x.servers[slot]
	for _, p := range x.path {
		n := x.trie.nodes.at(p.node)
		at, ok := n.holder(slot)
		if !ok {
			return
		}
		h := n.holders[at]
		matched := min(int(h.held), p.k)
		l.matched += matched
		en := x.entries.at(h.entry)
		if uint32(matched) > en.sure {
			l.doubtful = true
		}
		l.distance = s.ages.distance(en.epoch)
		if int(h.held) < p.k {
			return
		}
	}
}

// insert gives the endpoint all blocks of a request, whose nodes so far are
// x.path, and makes them the most recent, the head last.
func (x *Index) insert(s *server, slot uint32, blocks []uint64, leaseID uint32) {
	depth := 0
	for i := 0; i < len(x.path); i++ {
		p := &x.path[i]
		n := x.trie.nodes.at(p.node)
		at, ok := n.holder(slot)
		held := 0
		if ok {
			held = int(n.holders[at].held)
		}
		if p.k < len(n.run) && (depth+p.k < len(blocks) || held > p.k) {
			// What follows is another continuation, or is not used now.
			p.node = x.split(p.node, p.k)
			n = x.trie.nodes.at(p.node)
			held = min(held, p.k)
		}
		if ok && held < p.k && !x.mayVouch(n.holders[at].entry, leaseID) {
			// Two requests vouch for blocks of this run: one entry each.
			rest := step{p.node, p.k - held}
			p.node, p.k = x.split(p.node, held), held
			x.path = slices.Insert(x.path, i+1, rest)
			p, n = &x.path[i], x.trie.nodes.at(x.path[i].node)
		}
		if !ok {
			x.vouch(x.hold(s, slot, p.node, at, p.k), leaseID)
		} else if held < p.k {
			x.vouch(n.holders[at].entry, leaseID)
			x.lengthen(s, n, at, p.k)
		}
		depth += p.k
	}
	if depth < len(blocks) {
		x.append(s, slot, blocks[depth:], leaseID)
	}
	for i := len(x.path) - 1; i >= 0; i-- {
		n := x.trie.nodes.at(x.path[i].node)
		at, _ := n.holder(slot)
		x.touch(s, n.holders[at].entry, n.holders[at].held)
	}
}

// append adds blocks that nobody has after the path: to the last run, if this
// endpoint alone has it, else as a new node.
func (x *Index) append(s *server, slot uint32, blocks []uint64, leaseID uint32) {
	parent := uint32(0)
	if len(x.path) > 0 {
		last := &x.path[len(x.path)-1]
		parent = last.node
		n := x.trie.nodes.at(parent)
		if n.children == 0 && len(n.holders) == 1 && x.mayVouch(n.holders[0].entry, leaseID) {
			x.vouch(n.holders[0].entry, leaseID)
			x.trie.extend(n, blocks)
			x.lengthen(s, n, 0, len(n.run))
			return
		}
	}
	id := x.trie.add(parent, blocks)
	x.path = append(x.path, step{id, len(blocks)})
	x.vouch(x.hold(s, slot, id, 0, len(blocks)), leaseID)
}

// fit evicts until the index is within MaxBytes. Whoever has just taken memory
// pays first, with everything but this request; then the others in turn; then
// this request, if all the room there is does not hold it.
func (x *Index) fit(s *server, keep int) {
	for {
		all, idle := x.bytes()
		over := all - x.config.MaxBytes
		if over <= 0 {
			return
		}
		if idle >= over {
			x.trie.release(over)
			continue
		}
		victim := s
		if s.held <= keep {
			victim = x.next(s)
		}
		switch {
		case victim != nil:
			x.evict(victim, victim.held-x.heldBy(victim.oldest))
		case s.held > 0:
			x.evict(s, 0)
		default:
			return // the fixed cost of so many endpoints alone is too much
		}
	}
}

// next returns the next endpoint but s that holds anything, or nil.
func (x *Index) next(s *server) *server {
	for range x.servers {
		x.hand = (x.hand + 1) % len(x.servers)
		if v := &x.servers[x.hand]; v != s && v.held > 0 {
			return v
		}
	}
	return nil
}

// FirstToken implements [endpick.FirstTokenObserver].
func (x *Index) FirstToken(e *endpick.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if l := x.lease(e.Lease); l != nil {
		x.confirm(l)
	}
}

// Done implements [endpick.DoneObserver].
func (x *Index) Done(e *endpick.Event, o *endpick.Outcome) {
	x.mu.Lock()
	defer x.mu.Unlock()
	l := x.lease(e.Lease)
	if l == nil {
		return
	}
	if o.Status == endpick.Completed || !e.FirstTokenAt.IsZero() {
		x.confirm(l)
		x.correct(l, e.Request, o)
	} else {
		x.retract(l)
	}
	l.open = false
}

// EndpointRemoved implements [endpick.EndpointObserver].
func (x *Index) EndpointRemoved(ref endpick.Ref) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s := x.server(ref); s != nil {
		x.clear(s)
		s.gone = true
	}
}
