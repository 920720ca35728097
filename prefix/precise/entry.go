package precise

import (
	"math"

	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/internal/blockhash"
)

// entry is an engine's block. A block of ours is held while the engine's block in which
// it ends is held. That is exact for engine blocks of 16 tokens and multiples of it, and
// for others as long as engines evict the end of a prompt before its beginning, as all
// do.
type entry struct {
	node   *node  // the last block of ours that ends in it or before it; nil: none
	span   uint16 // how many blocks of ours end in it: node and those before
	walked uint16 // how many are known because of it: these, and those that its event has skipped
	copies uint8  // in GPU memory; engines may have several and remove them one at a time
	tiers  uint8  // a bit for each
	group  uint8
	tailed bool // it has a tail; with neither that nor a node, it is opaque
}

// tail is the beginning of a block of ours, in an engine's block that ends within it.
type tail struct {
	chain  blockhash.Chain // before it
	tokens [prefix.BlockTokens]uint32
	n      uint32
}

// entryKey is a feed's key for an engine's block. Engines use the same names in
// all groups.
func entryKey(h Hash, group uint32) uint64 { return uint64(h) + uint64(group)*0x9e3779b97f4a7c15 }

// stored adds blocks that the engine now holds. It returns false if their parent is
// not known.
func (f *Feed) stored(e *Event) (known bool) {
	if len(e.Hashes) == 0 {
		return true
	}
	number, ok := f.groupOf(e)
	if ok && len(e.Keys)+len(e.Tokens) == 0 {
		f.storedAgain(e, number)
		return true
	}
	size, skipped, sound := shape(e)
	if !ok || !sound || max(len(e.Tokens), len(e.Keys)*prefix.BlockTokens) > maxTokens {
		f.stats.Ignored++
		return true
	}
	c := cursor{store: &f.index.store}
	defer func() { c.store.give(c.node) }()
	if !f.begin(&c, e, number) {
		return false
	}
	f.describe(number, e, size)
	for i := range skipped + len(e.Hashes) {
		at := i - skipped
		c.opaque = c.opaque || at >= 0 && at < len(e.Opaque) && e.Opaque[at]
		c.ended = 0
		switch {
		case c.opaque:
		case len(e.Keys) > 0:
			c.step(e.Keys[i])
		default:
			for _, token := range e.Tokens[i*size:][:size] {
				c.next(token)
			}
		}
		if at >= 0 {
			f.put(entryKey(e.Hashes[at], number), number, e.Tier, &c)
		}
	}
	return true
}

// shape returns the block length of an event, and how many of the blocks that its
// tokens make have no hash. The length on the wire may be that of other groups, or
// missing. A group with a window omits what it doesn't need: hashes are those of the
// last blocks.
func shape(e *Event) (size, skipped int, ok bool) {
	n, tokens := len(e.Hashes), len(e.Tokens)
	if len(e.Keys) > 0 {
		return prefix.BlockTokens, 0, len(e.Keys) == n
	}
	size = e.BlockTokens
	if size < 0 || size > math.MaxInt32 {
		return 0, 0, false
	}
	if size > 0 && e.Spec != Full && size < tokens/n && tokens%size == 0 {
		return size, tokens/size - n, true
	}
	return tokens / n, 0, tokens%n == 0 && tokens/n <= maxBlockTokens
}

// maxBlockTokens limits the blocks of ours that end in one engine block. Hybrid
// models are known to have blocks of 1,056 tokens.
const maxBlockTokens = 1 << 16

// maxTokens limits those of one event, because requests wait while it is taken in: for some 70 ms.
const maxTokens = 1 << 20

// parent finds the block before those of an event, in any group: groups use the
// same names, and a sliding window drops early what others still hold.
func (f *Feed) parent(e *Event, number uint32) (key uint64, en entry, ok bool) {
	for i := range f.count + 1 {
		if i > 0 {
			number = i - 1
		}
		key = entryKey(e.Parent, number)
		if en, ok = f.entries[key]; ok {
			break
		}
	}
	return key, en, ok
}

// cursor walks along the blocks of a prompt.
type cursor struct {
	store  *store
	node   *node           // holds a reference
	chain  blockhash.Chain // without a secret: not known
	block  [prefix.BlockTokens]uint32
	n      uint32 // tokens of the last, partial block
	ended  uint16 // full blocks since the start of the engine's block
	walked uint16 // and since the last one that was put
	opaque bool   // there is content other than tokens, and so there is for all that follows
}

// begin sets the cursor to the end of the parent. It returns false if that is unknown.
func (f *Feed) begin(c *cursor, e *Event, number uint32) bool {
	if !e.HasParent {
		seed := f.scope(e.Adapter, e.Salt).Seed()
		c.chain = blockhash.Start(blockhash.SecretOf(seed.Seed), blockhash.OfTokens)
		return true
	}
	key, p, ok := f.parent(e, number)
	if !ok || len(e.Keys) > 0 && p.node == nil {
		return false
	}
	c.opaque, c.node = p.node == nil && !p.tailed, p.node.hold()
	if c.node != nil {
		c.chain = c.node.chain
	}
	if t := f.tails[key]; t != nil {
		c.chain, c.block, c.n = t.chain, t.tokens, t.n
	}
	return c.chain.Secret != nil || c.opaque || len(e.Keys) > 0
}

// next adds a token.
func (c *cursor) next(token uint32) {
	c.block[c.n] = token
	c.n++
	if c.n < prefix.BlockTokens {
		return
	}
	c.n = 0
	var sum [1]uint64
	c.step(c.chain.AppendWords(sum[:0], c.block[:])[0])
	if c.node.chain.Secret == nil {
		c.node.chain = c.chain
	}
}

// step moves on to the next block.
func (c *cursor) step(key uint64) {
	next := c.store.take(key, c.node)
	c.store.give(c.node)
	c.node = next
	c.ended++
	c.walked = min(c.walked, math.MaxUint16-1) + 1
}

// storedAgain adds known blocks to another tier.
func (f *Feed) storedAgain(e *Event, number uint32) {
	for i, h := range e.Hashes {
		f.others(i)
		key := entryKey(h, number)
		en, ok := f.entries[key]
		if !ok {
			f.stats.Missed++
			continue
		}
		f.hold(key, en, e.Tier)
	}
}

// put records that the engine holds a block that ends at the cursor.
func (f *Feed) put(key uint64, number uint32, t Tier, c *cursor) {
	s := c.store
	next := entry{group: uint8(number), walked: c.walked}
	c.walked = 0
	if !c.opaque {
		next.node, next.span, next.tailed = c.node, c.ended, c.n > 0
	}
	en, ok := f.entries[key]
	if ok && (en.node != next.node || en.tailed != next.tailed) {
		f.drop(key, en, allTiers) // the name now stands for another block
		ok = false
	}
	if !ok {
		en = next
		en.node.hold()
		if en.tailed {
			f.tails[key] = &tail{c.chain, c.block, c.n}
			s.bytes += tailWeight
		}
		s.bytes += entryWeight
		f.walked += int(en.walked)
		f.stats.Stored++
	}
	f.hold(key, en, t)
}

// hold records that a block is in a tier.
func (f *Feed) hold(key uint64, en entry, t Tier) {
	if t == GPU {
		en.copies = min(en.copies, math.MaxUint8-1) + 1
	}
	en.tiers |= 1 << t
	f.mark(&en, t, true)
	f.entries[key] = en
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
	n := en.node
	for range en.span {
		f.index.store.set(n, f.number, bits, there)
		n = n.parent
	}
}

// remove removes one copy of each block from a tier.
func (f *Feed) remove(e *Event) {
	number, ok := f.groupOf(e)
	if !ok {
		f.stats.Ignored++
		return
	}
	for i, h := range e.Hashes {
		f.others(i)
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
func (f *Feed) leave(key uint64, en entry, t Tier) entry {
	f.mark(&en, t, false)
	en.tiers &^= 1 << t
	if t == GPU {
		en.copies = 0
	}
	if en.tiers != 0 {
		f.entries[key] = en
		return en
	}
	s := &f.index.store
	if en.tailed {
		delete(f.tails, key)
		s.bytes -= tailWeight
	}
	s.give(en.node)
	delete(f.entries, key)
	s.bytes -= entryWeight
	f.walked -= int(en.walked)
	return en
}

// drop removes a block from these tiers.
func (f *Feed) drop(key uint64, en entry, tiers uint8) {
	for t := range Tier(Tiers) {
		if en.tiers&tiers>>t&1 != 0 {
			en = f.leave(key, en, t)
		}
	}
}

// clear empties a tier. All blocks are looked at: an engine that does so all the time, of whatever little
// it has in that tier, is forgotten, so that it costs no more than the blocks that it stores.
func (f *Feed) clear(t Tier) {
	if f.cleared += uint64(len(f.entries)); f.cleared > 1<<20+64*f.stats.Stored {
		f.knows = min(f.knows, Partial)
		f.empty(allTiers)
	} else if f.empty(1 << t); t == GPU {
		f.knows = Whole
	}
}
