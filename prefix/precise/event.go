package precise

// Hash is an engine's name for one of its blocks. It is opaque: engines compute it
// differently, and it means nothing outside its feed. Longer names are shortened to 64
// bits by whoever reads them.
type Hash uint64

// Kind is what happened to blocks.
type Kind uint8

// The kinds of an [Event].
const (
	Stored  Kind = iota // the blocks are there now, in this tier
	Removed             // one copy of each has gone from this tier
	Cleared             // the tier is empty
)

// Tier is where blocks are stored.
type Tier uint8

// The tiers, fastest first.
const (
	GPU Tier = iota
	CPU
	Disk
	External // a store that several engines share

	// Tiers is the number of tiers.
	Tiers = 4
)

// Spec is how the layers of a group look back on a prompt, and so which of its blocks
// they need to continue from some place.
type Spec uint8

const (
	// Full attention needs all blocks. Unknown kinds are treated as Full.
	Full Spec = iota
	// Window attention needs those in the window before the place.
	Window
	// State, of recurrent layers, is needed at the place itself.
	State
)

// Event is a change of an engine's cache. The zero value stores nothing.
type Event struct {
	Kind   Kind
	Tier   Tier
	Hashes []Hash // the blocks, in the order of the prompt

	// Group is the number of the cache that the blocks belong to, in a model whose layers
	// have several.
	Group int

	// The fields below are only used by Stored.

	// Parent is the block before the first one, if HasParent is set.
	Parent    Hash
	HasParent bool
	// Tokens are those of all blocks. Nil: not given; then the blocks must be known from
	// an event of another tier.
	Tokens []uint32
	// BlockTokens is the length of a block. Zero: derived from Tokens.
	BlockTokens int
	// Keys, if the sender knows them, are the blocks as in Request.Blocks; then Tokens
	// are not needed.
	Keys []uint64
	// Spec and Window, in tokens, describe the group.
	Spec   Spec
	Window int
	// Adapter and Salt distinguish the blocks from others with the same tokens. A block
	// without a parent determines them for all that follow it.
	Adapter, Salt string
	// Opaque says for each block whether it has content other than its tokens, such as a
	// picture. Such a block is known but matches nothing, and neither do those that follow
	// it. Nil: none is.
	Opaque []bool
}
