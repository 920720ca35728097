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

func memberOf(feed, mask uint32) member { return member(feed<<maskBits | mask) }

// sets stores each distinct set of members once, because nearly all blocks of a
// prompt are held by the same feeds. Set 0 is the empty one.
type sets struct {
	all    []set
	free   []uint32
	sums   map[uint64]uint32 // numbers by sum
	total  int               // members of all sets
	live   int
	before []member // scratch
}

type set struct {
	members []member // sorted by feed
	sum     uint64   // sum of the members' hashes, so that a change is an addition
	refs    uint32
}

func (s *sets) init() {
	s.all = make([]set, 1)
	s.sums = map[uint64]uint32{0: 0}
}

// mask returns a feed's mask in a set.
func (s *sets) mask(number, feed uint32) uint32 {
	_, mask := s.find(s.all[number].members, feed)
	return mask
}

func (s *sets) find(members []member, feed uint32) (at int, mask uint32) {
	at, _ = slices.BinarySearch(members, memberOf(feed, 0))
	if at < len(members) && members[at].feed() == feed {
		return at, members[at].mask()
	}
	return at, 0
}

// change returns the set in which one feed's mask is replaced, and moves one
// reference from the given set to it.
func (s *sets) change(number, feed, mask uint32) uint32 {
	at, old := s.find(s.all[number].members, feed)
	if old == mask {
		return number
	}
	sum := s.all[number].sum
	if old != 0 {
		sum -= blockhash.Mix(uint64(memberOf(feed, old)))
	}
	if mask != 0 {
		sum += blockhash.Mix(uint64(memberOf(feed, mask)))
	}
	next, ok := s.sums[sum]
	if !ok {
		next = s.add(number, at, old != 0, memberOf(feed, mask), sum)
	}
	if next != 0 {
		s.all[next].refs++
	}
	s.release(number)
	return next
}

// add adds a set that differs from another in one member.
func (s *sets) add(from uint32, at int, there bool, m member, sum uint64) uint32 {
	s.before = append(s.before[:0], s.all[from].members...)
	switch {
	case m.mask() == 0:
		s.before = slices.Delete(s.before, at, at+1)
	case there:
		s.before[at] = m
	default:
		s.before = slices.Insert(s.before, at, m)
	}
	var number uint32
	if n := len(s.free); n > 0 {
		number, s.free = s.free[n-1], s.free[:n-1]
	} else {
		number = uint32(len(s.all))
		s.all = append(s.all, set{})
	}
	s.all[number] = set{members: append(s.all[number].members[:0], s.before...), sum: sum}
	s.sums[sum] = number
	s.total += len(s.before)
	s.live++
	return number
}

func (s *sets) release(number uint32) {
	if number == 0 {
		return
	}
	e := &s.all[number]
	if e.refs--; e.refs > 0 {
		return
	}
	delete(s.sums, e.sum)
	s.total -= len(e.members)
	s.live--
	*e = set{members: e.members[:0]} // the array is reused by the next one
	s.free = append(s.free, number)
}
