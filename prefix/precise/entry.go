package precise

import (
	"encoding/binary"
	"math"

	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/internal/blockhash"
)

// entry is an engine's block. A block of ours is held while the engine's block in which
// it ends is held. That is exact for engine blocks of 16 tokens and multiples of it, and
// for others as long as engines evict the end of a prompt before its beginning, as all
// do.
type entry struct {
	node   uint32 // the last block of ours that ends in it or before it; 0: none
	tail   uint32 // the tokens after that; 0: none
	span   uint16 // how many blocks of ours end in it: node and those before
	copies uint8  // in GPU memory; engines may have several and remove them one at a time
	tiers  uint8  // a bit for each, and opaque
	group  uint8
}

// opaque marks a block with content other than its tokens, or one that follows such a block.
const opaque = 1 << Tiers

// tail is the beginning of a block of ours, in an engine's block that ends within it.
type tail struct {
	scope  uint32
	n      int
	tokens [prefix.BlockTokens - 1]uint32
}

// entryKey is a feed's key for an engine's block. Engines use the same names in
// all groups.
func entryKey(h Hash, group uint32) uint64 { return uint64(h) + uint64(group)*0x9e3779b97f4a7c15 }

// stored adds blocks that the engine now holds. It returns false if their parent is
// not known.
func (f *Feed) stored(e *Event) bool {
	n := len(e.Hashes)
	number, ok := f.groupOf(e)
	switch {
	case n == 0:
		return true
	case !ok:
		f.stats.Ignored++
		return true
	case len(e.Keys) > 0:
		return f.storedKeys(e, number)
	case len(e.Tokens) == 0:
		f.storedAgain(e, number)
		return true
	}
	size, skipped, ok := shape(e)
	if !ok {
		f.stats.Ignored++
		return true
	}
	return f.storedTokens(e, number, size, skipped)
}

// shape returns the block length of an event, and how many of the blocks that its
// tokens make have no hash. The length on the wire may be that of other groups, or
// missing. A group with a window omits what it doesn't need: hashes are those of the
// last blocks.
func shape(e *Event) (size, skipped int, ok bool) {
	n, tokens := len(e.Hashes), len(e.Tokens)
	size = e.BlockTokens
	if size < 0 || size > math.MaxInt32 {
		return 0, 0, false
	}
	if size > 0 && e.Spec != Full && size < tokens/n && tokens%size == 0 {
		return size, tokens/size - n, true
	}
	if tokens%n != 0 || tokens/n > maxBlockTokens {
		return 0, 0, false
	}
	return tokens / n, 0, true
}

// maxBlockTokens limits the blocks of ours that end in one engine block. Hybrid
// models are known to have blocks of 1,056 tokens.
const maxBlockTokens = 1 << 16

// parent finds the block before those of an event, in any group: groups use the
// same names, and a sliding window drops early what others still hold.
func (f *Feed) parent(e *Event, number uint32) (entry, bool) {
	if en, ok := f.entries[entryKey(e.Parent, number)]; ok {
		return en, true
	}
	for i := range f.count {
		if en, ok := f.entries[entryKey(e.Parent, i)]; ok {
			return en, true
		}
	}
	return entry{}, false
}

// cursor walks along the blocks of a prompt.
type cursor struct {
	store *store
	node  uint32 // holds a reference
	chain blockhash.Chain
	scope uint32
	taken bool // holds a reference to scope
	block [blockhash.Bytes]byte
	n     int // tokens of the last, partial block
	ended int // full blocks since the start of the engine's block
}

// next adds a token.
func (c *cursor) next(token uint32) {
	binary.LittleEndian.PutUint32(c.block[4*c.n:], token)
	c.n++
	if c.n < prefix.BlockTokens {
		return
	}
	c.n = 0
	c.ended++
	var sum [1]uint64
	c.step(c.chain.Append(sum[:0], c.block[:])[0])
	n := c.store.at(c.node)
	if n.scope == 0 {
		n.a, n.b, n.scope = c.chain.A, c.chain.B, c.scope
		c.store.scopes.all[c.scope].refs++
	}
}

// step moves on to the next block.
func (c *cursor) step(key uint64) {
	next := c.store.take(key, c.node)
	c.store.give(c.node)
	c.node = next
}

func (c *cursor) end() {
	c.store.give(c.node)
	if c.taken {
		c.store.scopes.give(c.scope)
	}
}

// begin sets the cursor to the end of the parent. It returns false if that is unknown,
// and strange if the parent is opaque.
func (f *Feed) begin(c *cursor, e *Event, number uint32) (strange, ok bool) {
	s := &f.index.store
	c.store = s
	if !e.HasParent {
		c.scope, c.taken = s.scopes.take(f.scope(e.Adapter, e.Salt)), true
		c.chain = blockhash.Start(s.scopes.all[c.scope].secret, blockhash.OfTokens)
		return false, true
	}
	p, ok := f.parent(e, number)
	if !ok {
		return false, false
	}
	if p.tiers&opaque != 0 {
		return true, true
	}
	if p.tail != 0 {
		t := &f.index.tails.all[p.tail]
		c.scope, c.n = t.scope, t.n
		for i, token := range t.tokens[:t.n] {
			binary.LittleEndian.PutUint32(c.block[4*i:], token)
		}
	}
	if p.node != 0 {
		n := s.at(p.node)
		if n.scope == 0 {
			return false, false
		}
		n.refs++
		c.node, c.scope = p.node, n.scope
		c.chain = blockhash.Chain{Secret: s.scopes.all[n.scope].secret, A: n.a, B: n.b}
	} else {
		c.chain = blockhash.Start(s.scopes.all[c.scope].secret, blockhash.OfTokens)
	}
	// What the cursor refers to might otherwise be freed while blocks are replaced.
	s.scopes.all[c.scope].refs++
	c.taken = true
	return false, true
}

func (f *Feed) storedTokens(e *Event, number uint32, size, skipped int) bool {
	var c cursor
	strange, ok := f.begin(&c, e, number)
	if !ok {
		return false
	}
	defer func() { c.end() }()
	f.describe(number, e, size)
	tokens := e.Tokens
	for i := range skipped + len(e.Hashes) {
		at := i - skipped
		strange = strange || at >= 0 && at < len(e.Opaque) && e.Opaque[at]
		if !strange {
			c.ended = 0
			for _, t := range tokens[:size] {
				c.next(t)
			}
		}
		tokens = tokens[size:]
		if at >= 0 {
			f.put(e, number, at, &c, strange)
		}
	}
	return true
}

// storedKeys adds blocks that the sender names as requests do.
func (f *Feed) storedKeys(e *Event, number uint32) bool {
	if len(e.Keys) != len(e.Hashes) {
		f.stats.Ignored++
		return true
	}
	c := cursor{store: &f.index.store}
	if e.HasParent {
		p, ok := f.parent(e, number)
		if !ok || p.node == 0 {
			return false
		}
		c.node = p.node
		c.store.at(p.node).refs++
	}
	defer func() { c.end() }()
	f.describe(number, e, prefix.BlockTokens)
	for i, key := range e.Keys {
		c.step(key)
		c.ended = 1
		f.put(e, number, i, &c, false)
	}
	return true
}

// storedAgain adds known blocks to another tier.
func (f *Feed) storedAgain(e *Event, number uint32) {
	for _, h := range e.Hashes {
		key := entryKey(h, number)
		en, ok := f.entries[key]
		if !ok {
			f.stats.Missed++
			continue
		}
		f.hold(&en, e.Tier)
		f.entries[key] = en
	}
}

// put records that the engine holds a block that ends at the cursor.
func (f *Feed) put(e *Event, number uint32, at int, c *cursor, strange bool) {
	x := f.index
	key := entryKey(e.Hashes[at], number)
	en, ok := f.entries[key]
	if ok && (strange != (en.tiers&opaque != 0) || !strange && en.node != c.node) {
		// The name now stands for another block.
		f.drop(&en)
		x.entries--
		ok = false
	}
	if !ok {
		en = entry{group: uint8(number)}
		if strange {
			en.tiers = opaque
		} else {
			en.node, en.span = c.node, uint16(c.ended)
			if en.node != 0 {
				x.store.at(en.node).refs++
			}
			if c.n > 0 {
				en.tail = x.tails.take(c)
			}
		}
		x.entries++
		f.stats.Stored++
	}
	f.hold(&en, e.Tier)
	f.entries[key] = en
}

// hold records that a block is in a tier.
func (f *Feed) hold(en *entry, t Tier) {
	if t == GPU {
		en.copies = min(en.copies, math.MaxUint8-1) + 1
	}
	en.tiers |= 1 << t
	f.mark(en, t, true)
}

// mark sets or clears the bits of a tier for all blocks of ours that end in an engine's.
func (f *Feed) mark(en *entry, t Tier, there bool) {
	bits := uint32(1) << en.group
	if t != GPU {
		if f.groups[en.group].need > 0 {
			return // a head can be loaded if the group that needs all of it can load it
		}
		bits = 1 << (tierShift + uint32(t))
	}
	s := &f.index.store
	id := en.node
	for range en.span {
		n := s.at(id)
		parent := n.parent
		s.set(id, f.number, bits, there)
		id = parent
	}
}

// remove removes one copy of each block from a tier.
func (f *Feed) remove(e *Event) {
	number, ok := f.groupOf(e)
	if !ok {
		f.stats.Ignored++
		return
	}
	for _, h := range e.Hashes {
		key := entryKey(h, number)
		en, ok := f.entries[key]
		if !ok || en.tiers>>e.Tier&1 == 0 {
			f.stats.Missed++
			continue
		}
		if e.Tier == GPU && en.copies > 1 {
			en.copies--
			f.entries[key] = en
			continue
		}
		f.leave(key, en, e.Tier)
	}
}

// leave removes a block from a tier.
func (f *Feed) leave(key uint64, en entry, t Tier) {
	f.mark(&en, t, false)
	en.tiers &^= 1 << t
	if t == GPU {
		en.copies = 0
	}
	if en.tiers&^opaque != 0 {
		f.entries[key] = en
		return
	}
	f.letGo(&en)
	delete(f.entries, key)
	f.index.entries--
}

// clear empties a tier.
func (f *Feed) clear(t Tier) {
	for key, en := range f.entries {
		if en.tiers>>t&1 != 0 {
			f.leave(key, en, t)
		}
	}
	if t == GPU {
		f.knows = Whole
	}
}

// drop removes a block from all tiers.
func (f *Feed) drop(en *entry) {
	for t := range Tier(Tiers) {
		if en.tiers>>t&1 != 0 {
			f.mark(en, t, false)
		}
	}
	f.letGo(en)
}

// letGo releases what an entry refers to.
func (f *Feed) letGo(en *entry) {
	f.index.store.give(en.node)
	f.index.tails.give(en.tail, &f.index.store.scopes)
	en.node, en.tail, en.span = 0, 0, 0
}

// tails are indexed by number, from 1.
type tails struct {
	all  []tail
	free []uint32
}

func (t *tails) take(c *cursor) uint32 {
	if len(t.all) == 0 {
		t.all = make([]tail, 1)
	}
	number := uint32(len(t.all))
	if n := len(t.free); n > 0 {
		number, t.free = t.free[n-1], t.free[:n-1]
	} else {
		t.all = append(t.all, tail{})
	}
	e := &t.all[number]
	e.scope, e.n = c.scope, c.n
	c.store.scopes.all[c.scope].refs++
	for i := range c.n {
		e.tokens[i] = binary.LittleEndian.Uint32(c.block[4*i:])
	}
	return number
}

func (t *tails) give(number uint32, s *scopes) {
	if number == 0 {
		return
	}
	s.give(t.all[number].scope)
	t.free = append(t.free, number)
}

func (t *tails) live() int { return max(len(t.all)-1, 0) - len(t.free) }
