package engine

// cache is the paged KV cache. Cached blocks live in runs: stretches of
// consecutive blocks of one prefix that are referenced, freed and evicted
// together, linked to the run before them as in a compressed radix tree. Work is
// per run, never per block.
//
//	blocks = free + idle + (blocks of referenced runs) + (private blocks of sequences)
type cache struct {
	blocks  int64           // size
	free    int64           // hold nothing
	idle    int64           // cached, referenced by no sequence: evictable
	heads   map[uint64]*run // by the hash of a run's first block
	ring    *run            // sentinel of the ring of idle runs; next is the least recently used
	evicted int64           // blocks, so far
	log     cacheLog
}

// run holds the blocks start, start+1, … of a prefix. Hashes are chained, so two
// runs that agree on one block agree on all before it.
type run struct {
	hashes     []uint64 // part of some request's Blocks
	key        uint64   // in heads: hashes[0], unless the caller's hashes are not chained
	parent     *run     // the run that ends at start; nil at the head of a prompt
	start      int
	refs       int // sequences whose path goes through this run
	children   int // runs whose parent this is
	prev, next *run
}

func newCache(blocks int64) cache {
	c := cache{blocks: blocks, free: blocks, heads: map[uint64]*run{}, ring: new(run)}
	c.ring.prev, c.ring.next = c.ring, c.ring
	return c
}

// available is the number of blocks that can be allocated without preemption.
func (c *cache) available() int64 { return c.free + c.idle }

// take makes n blocks private, evicting cached ones if necessary. n is at most
// available.
func (c *cache) take(n int64) {
	c.free -= n
	for c.free < 0 {
		r := c.ring.next
		n := min(int64(len(r.hashes)), -c.free)
		keep := len(r.hashes) - int(n)
		c.evicted += n
		c.log.went(r.hashes[keep:])
		c.free += n
		c.idle -= n
		if keep > 0 {
			r.hashes = r.hashes[:keep]
			continue
		}
		// Leaves are less recently used than their heads, so r has no children.
		c.forget(r)
	}
}

func (c *cache) forget(r *run) {
	c.unlink(r)
	if c.heads[r.key] == r {
		delete(c.heads, r.key)
	}
	if r.parent != nil {
		r.parent.children--
	}
}

// child finds the run that continues a prefix, whose last run is parent, with
// hashes[at].
func (c *cache) child(parent *run, hashes []uint64, at int) *run {
	r := c.heads[hashes[at]]
	if r == nil || r.parent != parent || r.start != at {
		return nil // not cached, or hashes that are not chained
	}
	return r
}

// peek counts the blocks of hashes that are cached, from the head on, and how
// many of them are idle.
func (c *cache) peek(hashes []uint64) (cached, idle int64) {
	var parent *run
	for at := 0; at < len(hashes); {
		r := c.child(parent, hashes, at)
		if r == nil {
			break
		}
		n := commonHead(r.hashes, hashes[at:])
		at += n
		cached = int64(at)
		if r.refs == 0 {
			idle += int64(n)
		}
		if n < len(r.hashes) {
			break
		}
		parent = r
	}
	return cached, idle
}

// walk extends the sequence's path through cached runs, up to the block limit,
// and returns the number of blocks gained.
func (c *cache) walk(s *sequence, limit int) int64 {
	before := s.cached
	for s.cached < limit {
		r := c.child(s.leaf, s.hashes, s.cached)
		if r == nil {
			break
		}
		n := commonHead(r.hashes, s.hashes[s.cached:limit])
		partial := n < len(r.hashes)
		if partial {
			r = c.split(r, n)
		}
		if r.refs == 0 {
			c.idle -= int64(n)
			if !partial {
				c.unlink(r)
			}
		}
		r.refs++
		s.leaf = r
		s.cached += n
		if partial {
			break
		}
	}
	return int64(s.cached - before)
}

// register turns private blocks of the sequence into cached ones, up to the block
// limit. If a block is cached already, that is shared and the copy freed.
func (c *cache) register(s *sequence, limit int) {
	limit = min(limit, len(s.hashes))
	if limit <= s.cached {
		return
	}
	gained := c.walk(s, limit)
	c.free += gained
	s.private -= gained
	if s.cached == limit || c.heads[s.hashes[s.cached]] != nil {
		return
	}
	s.private -= int64(limit - s.cached)
	leaf := s.leaf
	if leaf == nil || leaf.refs > 1 || leaf.children > 0 {
		if leaf != nil {
			leaf.children++
		}
		leaf = &run{key: s.hashes[s.cached], parent: s.leaf, start: s.cached, refs: 1}
		c.heads[leaf.key] = leaf
		s.leaf = leaf
	}
	c.log.came(s.hashes, s.cached, limit)
	leaf.hashes = s.hashes[leaf.start:limit]
	s.cached = limit
}

// release releases all blocks of the sequence. The end of the path becomes idle
// before its head, as vLLM frees blocks in reverse.
func (c *cache) release(s *sequence) {
	c.free += s.private
	for r := s.leaf; r != nil; r = r.parent {
		r.refs--
		if r.refs == 0 {
			c.idle += int64(len(r.hashes))
			c.link(r)
		}
	}
	s.leaf, s.cached, s.private = nil, 0, 0
}

// split splits r after n blocks and returns the new run that is its head, which is
// in no ring and has to be referenced by the caller. r remains the end, with its
// references and its place in the ring.
func (c *cache) split(r *run, n int) *run {
	head := &run{hashes: r.hashes[:n], key: r.key, parent: r.parent, start: r.start, refs: r.refs, children: 1}
	r.hashes, r.key, r.parent, r.start = r.hashes[n:], r.hashes[n], head, r.start+n
	c.heads[head.key] = head
	c.heads[r.key] = r
	return head
}

// link makes r the most recently used idle run.
func (c *cache) link(r *run) {
	r.prev, r.next = c.ring.prev, c.ring
	r.prev.next, r.next.prev = r, r
}

func (c *cache) unlink(r *run) {
	r.prev.next, r.next.prev = r.next, r.prev
	r.prev, r.next = nil, nil
}

// commonHead is the length of the common head of two stretches of hash chains,
// where equal hashes at one position mean equal hashes at all positions before
// it.
func commonHead(a, b []uint64) int {
	low, high := 0, min(len(a), len(b))
	if high > 0 && a[high-1] == b[high-1] {
		return high
	}
	for low < high {
		middle := int(uint(low+high) >> 1)
		if a[middle] == b[middle] {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}
