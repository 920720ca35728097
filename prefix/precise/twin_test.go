package precise

import (
	"slices"

	"github.com/endpick/endpick/prefix"
)

// twin is the index as documented, in maps and lists: it knows every prompt from
// its first token on.
type twin struct {
	shares [Tiers]float64
	feeds  []*twinFeed
}

type twinFeed struct {
	knows  Knowledge
	groups []group
	blocks map[twinName]*twinBlock
	has    map[uint64]map[int]bool // bits of member, by key
}

type twinName struct {
	hash  Hash
	group int
}

type twinBlock struct {
	scope  prefix.Scope
	tokens []uint32 // from the beginning of the prompt
	from   int      // blocks of ours that end before it
	opaque bool
	named  []uint64 // result of keys
	copies int
	tiers  map[Tier]bool
}

func newTwin(c [Tiers]float64, feeds int) *twin {
	t := &twin{shares: [Tiers]float64{1, 1 - c[CPU], 1 - c[Disk], 1 - c[External]}}
	for range feeds {
		f := &twinFeed{}
		f.forget()
		t.feeds = append(t.feeds, f)
	}
	return t
}

func (f *twinFeed) forget() { f.blocks, f.has = map[twinName]*twinBlock{}, map[uint64]map[int]bool{} }

func (f *twinFeed) reset(k Knowledge) {
	f.forget()
	f.groups, f.knows = nil, k
}

func (b *twinBlock) keys() []uint64 {
	if b.opaque {
		return nil
	}
	if b.named == nil {
		b.named = prefix.AppendTokens(make([]uint64, 0, len(b.tokens)/prefix.BlockTokens), b.scope.Seed(), b.tokens)[b.from:]
	}
	return b.named
}

func (f *twinFeed) bits(tier Tier, group int, keys []uint64, there bool) {
	bit := group
	if tier != GPU {
		if f.groups[group].need > 0 {
			return
		}
		bit = maxGroups + int(tier) - 1
	}
	for _, k := range keys {
		if f.has[k] == nil {
			f.has[k] = map[int]bool{}
		}
		f.has[k][bit] = there
	}
}

func (f *twinFeed) leave(name twinName, b *twinBlock, tier Tier) {
	f.bits(tier, name.group, b.keys(), false)
	delete(b.tiers, tier)
	if tier == GPU {
		b.copies = 0
	}
	if len(b.tiers) == 0 {
		delete(f.blocks, name)
	}
}

func (f *twinFeed) apply(e *Event) (unknown int) {
	if f.knows == Nothing {
		f.knows = Partial
	}
	group := slices.IndexFunc(f.groups, func(g group) bool { return g.id == e.Group })
	switch e.Kind {
	case Cleared:
		for name, b := range f.blocks {
			if b.tiers[e.Tier] {
				f.leave(name, b, e.Tier)
			}
		}
		if e.Tier == GPU {
			f.knows = Whole
		}
		return 0
	case Removed:
		for _, h := range e.Hashes {
			name := twinName{h, group}
			b := f.blocks[name]
			switch {
			case b == nil || !b.tiers[e.Tier]:
			case e.Tier == GPU && b.copies > 1:
				b.copies--
			default:
				f.leave(name, b, e.Tier)
			}
		}
		return 0
	}
	if len(e.Hashes) == 0 {
		return 0
	}
	if len(e.Tokens) == 0 {
		for _, h := range e.Hashes {
			if b := f.blocks[twinName{h, group}]; b != nil {
				f.hold(b, twinName{h, group}, e.Tier)
			}
		}
		return 0
	}
	size := len(e.Tokens) / len(e.Hashes)
	if e.Spec != Full {
		size = e.BlockTokens
	}
	var parent *twinBlock
	if e.HasParent {
		if parent = f.blocks[twinName{e.Parent, group}]; parent == nil {
			for g := range f.groups {
				if parent == nil {
					parent = f.blocks[twinName{e.Parent, g}]
				}
			}
		}
	}
	if e.HasParent && parent == nil {
		f.knows = Partial
		return 1
	}
	f.describe(&group, e, size)
	var b twinBlock
	if parent != nil {
		b = *parent
	} else {
		b.scope = prefix.Scope{Model: "m", Adapter: e.Adapter, Salt: e.Salt}
	}
	skipped := len(e.Tokens)/size - len(e.Hashes)
	for i := range len(e.Tokens) / size {
		if at := i - skipped; at >= 0 && at < len(e.Opaque) && e.Opaque[at] {
			b.opaque = true
		}
		b.from = len(b.tokens) / prefix.BlockTokens
		b.tokens, b.named = append(slices.Clip(b.tokens), e.Tokens[i*size:(i+1)*size]...), nil
		if i < skipped {
			continue
		}
		name := twinName{e.Hashes[i-skipped], group}
		if old := f.blocks[name]; old == nil || old.opaque != b.opaque || !slices.Equal(old.keys(), b.keys()) {
			if old != nil {
				for tier := range old.tiers {
					f.bits(tier, group, old.keys(), false)
				}
			}
			block := b
			block.copies, block.tiers = 0, map[Tier]bool{}
			f.blocks[name] = &block
		}
		f.hold(f.blocks[name], name, e.Tier)
	}
	return 0
}

// describe is only called for blocks that are placed; a group is created by the first such event.
func (f *twinFeed) describe(at *int, e *Event, size int) {
	if *at >= 0 && e.Tier != GPU {
		return
	}
	g := group{id: e.Group, tokens: size}
	switch e.Spec {
	case Window:
		for g.need*prefix.BlockTokens < (e.Window-1+size-1)/size*size {
			g.need++
		}
	case State:
		g.need = 1
	}
	if *at < 0 {
		*at = len(f.groups)
		f.groups = append(f.groups, g)
	}
	f.groups[*at] = g
}

func (f *twinFeed) hold(b *twinBlock, name twinName, tier Tier) {
	if tier == GPU {
		b.copies++
	}
	b.tiers[tier] = true
	f.bits(tier, name.group, b.keys(), true)
}

// saved is how many blocks of a prompt the feed's engine would not have to compute.
func (t *twin) saved(f *twinFeed, blocks []uint64) float64 {
	loaded := func(k uint64) (best float64, any bool) {
		for tier := CPU; tier < Tiers; tier++ {
			if f.has[k][maxGroups+int(tier)-1] {
				best, any = max(best, t.shares[tier]), true
			}
		}
		return best, any
	}
	value := func(k uint64) float64 {
		full, whole := false, true
		for g := range f.groups {
			if f.groups[g].need == 0 {
				full = true
				whole = whole && f.has[k][g]
			}
		}
		if full && whole || !full && len(f.groups) > 0 {
			return 1
		}
		best, _ := loaded(k)
		return best
	}
	grain := prefix.BlockTokens
	for _, g := range f.groups {
		grain = max(grain, g.tokens)
	}
	reach := 0
	for reach < len(blocks) && value(blocks[reach]) > 0 {
		reach++
	}
	for m := reach; m > 0; m-- {
		n := m * prefix.BlockTokens / grain * grain / prefix.BlockTokens // ends with a block of the engine, or in the next
		open := true
		for g := range f.groups {
			need := f.groups[g].need
			for i := max(n-need, 0); i < n && need > 0; i++ {
				_, any := loaded(blocks[i])
				open = open && (any || f.has[blocks[i]][g])
			}
		}
		if open && n > 0 {
			sum := 0.0
			for _, k := range blocks[:n] {
				sum += value(k)
			}
			return sum
		}
	}
	return 0
}
