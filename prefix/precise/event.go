package precise

// Hash is an engine's name for one of its blocks. It is opaque: engines differ in what
// they make it of, and it means nothing outside of its feed. Longer names are shortened
// to 64 bits by whoever reads them.
type Hash uint64

// Kind is what happened to blocks.
type Kind uint8

// The kinds of an [Event].
const (
	Stored  Kind = iota // the blocks are there now, in this tier
	Removed             // one copy of each has gone from this tier
	Cleared             // the tier is empty
)

// Tier is where blocks lie.
type Tier uint8

// The tiers, the fastest first.
const (
	GPU Tier = iota
	CPU
	Disk
	External // a store that several engines share

	// Tiers is their number.
	Tiers = 4
)

// String returns the name in lower case.
func (t Tier) String() string {
	if t >= Tiers {
		return "unknown"
	}
	return [Tiers]string{"gpu", "cpu", "disk", "external"}[t]
}

// Spec is how the layers of a group look back on a prompt, and so which of its blocks
// they need to go on from some place.
type Spec uint8

const (
	// Full attention needs all blocks. What is unknown is taken for it.
	Full Spec = iota
	// Window attention needs those in the window before the place.
	Window
	// State, of recurrent layers, is needed at the place itself.
	State
)

// Event is something that an engine says of its cache. The zero value stores nothing.
type Event struct {
	Kind   Kind
	Tier   Tier
	Hashes []Hash // the blocks, in the order of the prompt

	// Group is the number of the cache that the blocks belong to, in a model whose layers
	// have several.
	Group int

	// The rest belongs to Stored.

	// Parent is the block before the first one, which HasParent says there is.
	Parent    Hash
	HasParent bool
	// Tokens are those of all blocks. Nil: not said; the blocks must be known then, from
	// an event of another tier.
	Tokens []uint32
	// BlockTokens is the length of a block. Zero: what Tokens make it.
	BlockTokens int
	// Keys, where the sender has them, are the blocks as Request.Blocks names them, and
	// Tokens are not needed.
	Keys []uint64
	// Spec and Window, in tokens, describe the group.
	Spec   Spec
	Window int
	// Adapter and Salt are what keeps the blocks apart from those of equal tokens. A block
	// without a parent decides for all that follow it.
	Adapter, Salt string
	// Foreign says of each block whether it holds what its tokens don't name, such as a
	// picture. It is known then, but matches nothing, nor does what follows. Nil: none does.
	Foreign []bool
}
