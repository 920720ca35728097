package precise

import (
	"slices"

	"github.com/endpick/endpick/prefix/internal/blockhash"
)

// The most bytes that these take, with their places in maps: groups of eight
// places are at least 7/16 full, with one more byte for each place.
const (
	nodeWeight   = 120
	entryWeight  = 58
	memberWeight = 4
	secretWeight = 120 // of a chain's scope, in the first block of each prompt
	tailWeight   = 136 + secretWeight
)

// node is a block of a prompt, by its name in requests, and who holds it. Nodes stay as
// long as something refers to them: the next block, or an engine's block.
type node struct {
	key     uint64
	chain   blockhash.Chain // after the block; without a secret if no event has given the block's tokens
	parent  *node           // the previous block
	members []member
	sum     uint64 // of the members' hashes: equal for blocks that the same feeds hold
	refs    int32
}

// member says how one feed holds a block: the feed's number in the upper 21 bits, and a
// mask in the lower. In GPU memory each group of the feed has a bit of its own.
type member uint32

const (
	maxGroups = 8
	tierShift = maxGroups - 1 // of CPU, the first tier after GPU
	tiersMask = 7 << maxGroups
	maskBits  = maxGroups + Tiers - 1
	wholeMask = 1<<maskBits - 1
)

func (m member) feed() uint32 { return uint32(m) >> maskBits }
func (m member) mask() uint32 { return uint32(m) & wholeMask }

// find returns the place of a feed among the members, and its mask; 0: it is none of them.
func (n *node) find(feed uint32) (at int, mask uint32) {
	at, _ = slices.BinarySearch(n.members, member(feed<<maskBits))
	if at < len(n.members) && n.members[at].feed() == feed {
		return at, n.members[at].mask()
	}
	return at, 0
}

// store has the known blocks, whoever holds them.
type store struct {
	nodes map[uint64]*node
	bytes int64 // the most memory that events may take now
}

// take returns the node of a block, with one more reference to it.
func (s *store) take(key uint64, parent *node) *node {
	n := s.nodes[key]
	if n == nil {
		n = &node{key: key, parent: parent.hold()}
		s.nodes[key] = n
		s.bytes += n.weight()
	}
	return n.hold()
}

func (n *node) weight() int64 {
	w := nodeWeight + memberWeight*int64(cap(n.members))
	if n.parent == nil {
		w += secretWeight
	}
	return w
}

// hold takes one more reference to a node, which may be nil.
func (n *node) hold() *node {
	if n != nil {
		n.refs++
	}
	return n
}

// give returns a reference.
func (s *store) give(n *node) {
	for n != nil {
		if n.refs--; n.refs > 0 {
			return
		}
		delete(s.nodes, n.key)
		s.bytes -= n.weight()
		n = n.parent
	}
}

// set sets or clears bits of one feed for a block.
func (s *store) set(n *node, feed, bits uint32, there bool) {
	at, old := n.find(feed)
	mask := old &^ bits
	if there {
		mask |= bits
	}
	if mask == old {
		return
	}
	before := cap(n.members)
	if old != 0 {
		n.sum -= blockhash.Mix(uint64(n.members[at]))
	}
	m := member(feed<<maskBits | mask)
	switch {
	case mask == 0:
		if n.members = slices.Delete(n.members, at, at+1); before > 8 && len(n.members) <= before/4 {
			n.members = slices.Clone(n.members)
		}
	case old == 0:
		n.members = slices.Insert(n.members, at, m)
	default:
		n.members[at] = m
	}
	if mask != 0 {
		n.sum += blockhash.Mix(uint64(m))
	}
	s.bytes += memberWeight * int64(cap(n.members)-before)
}
