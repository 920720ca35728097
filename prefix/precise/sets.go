package precise

import (
	"slices"

	"github.com/endpick/endpick/prefix/internal/blockhash"
)

// member says how one feed holds a block: the feed's number in the upper bits, and a
// mask in the lower. In GPU memory each group of the feed has a bit of its own.
type member uint32

const (
	maskBits  = 12
	maxGroups = 8
	tierShift = maxGroups - 1 // of CPU, the first tier after GPU
	tiersMask = 7 << maxGroups
	routedBit = 1 << (maxGroups + 3)
	wholeMask = 1<<maskBits - 1

	// maxFeeds is the most feed numbers that fit into a member.
	maxFeeds = 1 << (32 - maskBits)
)

func (m member) feed() uint32 { return uint32(m) >> maskBits }
func (m member) mask() uint32 { return uint32(m) & wholeMask }

// sets stores each distinct set of members once, because nearly all blocks of a
// prompt are held by the same feeds. Set 0 is the empty one.
type sets struct {
	slots[set]
	sums map[uint64]uint32 // numbers by sum
}

type set struct {
	members []member // sorted by feed
	sum     uint64   // sum of the members' hashes, so that a change is an addition
	refs    uint32
}

// find returns the place of a feed, and its mask if it is a member.
func (s *set) find(feed uint32) (at int, mask uint32) {
	at, _ = slices.BinarySearch(s.members, member(feed<<maskBits))
	if at < len(s.members) && s.members[at].feed() == feed {
		return at, s.members[at].mask()
	}
	return at, 0
}

// mask returns how a feed holds a block.
func (s *store) mask(id, feed uint32) uint32 {
	_, mask := s.sets.at(s.at(id).set).find(feed)
	return mask
}

// set sets or clears bits of one feed for a block.
func (s *store) set(id, feed, bits uint32, there bool) {
	n := s.at(id)
	from := s.sets.at(n.set)
	at, old := from.find(feed)
	mask := old &^ bits
	if there {
		mask |= bits
	}
	if mask == old {
		return
	}
	sum := from.sum
	rest := from.members[at:]
	if old != 0 {
		sum -= blockhash.Mix(uint64(rest[0]))
		rest = rest[1:]
	}
	m := member(feed<<maskBits | mask)
	if mask != 0 {
		sum += blockhash.Mix(uint64(m))
	}
	number, ok := s.sets.sums[sum]
	if !ok {
		number = s.sets.take()
		to := s.sets.at(number)
		to.members = append(to.members[:0], from.members[:at]...) // the array is reused
		if mask != 0 {
			to.members = append(to.members, m)
		}
		to.members, to.sum = append(to.members, rest...), sum
		s.sets.sums[sum] = number
		s.bytes += setWeight + memberWeight*int64(len(to.members))
	}
	s.sets.at(number).refs++
	s.release(n.set)
	n.set = number
}

// release returns a reference to a set.
func (s *store) release(number uint32) {
	e := s.sets.at(number)
	if e.refs--; number == 0 || e.refs > 0 {
		return
	}
	delete(s.sets.sums, e.sum)
	s.bytes -= setWeight + memberWeight*int64(len(e.members))
	s.sets.give(number)
}
