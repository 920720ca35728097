package prefix

import (
	"cmp"
	"slices"
)

// sortKey is eight bytes of a member's key to sort by, and the member's index.
type sortKey struct {
	head   uint64
	member uint32
}

// fewMembers are sorted by comparison.
const fewMembers = 64

// sort returns the members in the stable order of their keys.
func (c *canonicalizer) sort(members []member) []sortKey {
	for i := range c.order {
		c.order[i] = slices.Grow(c.order[i][:0], len(members))[:len(members)]
	}
	order := c.order[0]
	for i := range members {
		order[i] = sortKey{members[i].head, uint32(i)}
	}
	c.sortBy(members, order, c.order[1], 1)
	return order
}

// sortBy sorts members whose keys are equal before offset from: by the eight bytes
// there, then recursively those for which these are equal. Each byte of the keys is
// read once, whatever they are.
func (c *canonicalizer) sortBy(members []member, order, other []sortKey, place uint32) {
	if len(order) < fewMembers {
		slices.SortFunc(order, func(a, b sortKey) int {
			switch {
			case a.head < b.head:
				return -1
			case a.head > b.head:
				return 1
			}
			if by := c.compare(&members[a.member], &members[b.member]); by != 0 {
				return by
			}
			return cmp.Compare(a.member, b.member)
		})
		return
	}
	byDigits(order, other)
	for from := 0; from < len(order); {
		to := from + 1
		for to < len(order) && order[to].head == order[from].head {
			to++
		}
		// If these eight bytes are equal, either all keys end in them, with a quote, or none does.
		if m := &members[order[from].member]; to > from+1 && m.keyEnd-m.from > place+8 {
			for i := range order[from:to] {
				m := &members[order[from+i].member]
				order[from+i].head = headOf(c.dst[m.from+place+8 : m.keyEnd])
			}
			c.sortBy(members, order[from:to], other[from:to], place+8)
		}
		from = to
	}
}

// byDigits is a radix sort by head, from its last byte to the first, which skips
// bytes that are equal everywhere. The result is in order.
func byDigits(order, other []sortKey) {
	differ := uint64(0)
	for i := range order {
		differ |= order[i].head ^ order[0].head
	}
	from, to := order, other
	for shift := 0; shift < 64; shift += 8 {
		if byte(differ>>shift) == 0 {
			continue
		}
		var at [256]uint32
		for i := range from {
			at[byte(from[i].head>>shift)]++
		}
		sum := uint32(0)
		for i, n := range at {
			at[i] = sum
			sum += n
		}
		for _, k := range from {
			digit := byte(k.head >> shift)
			to[at[digit]] = k
			at[digit]++
		}
		from, to = to, from
	}
	if &from[0] != &order[0] {
		copy(order, from)
	}
}
