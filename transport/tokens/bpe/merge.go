package bpe

import (
	"container/heap"
	"math"
)

// merges are the pairs of tokens that become one. Lower ranks are merged first.
type merges map[[2]uint32]merge

type merge struct {
	rank   int32
	result uint32
}

// symbol is a token of a piece that is being merged, in a doubly linked list.
type symbol struct {
	id         uint32
	prev, next int32 // −1: none
	gone       bool  // merged into the previous one
}

// candidate is a possible merge of the symbol at this index with the next one.
type candidate struct {
	rank        int32
	at          int32
	left, right uint32 // their ids when it was found
}

// candidates is a heap: the lowest rank first, then the leftmost.
type candidates []candidate

func (c candidates) Len() int { return len(c) }
func (c candidates) Less(i, j int) bool {
	return c[i].rank < c[j].rank || c[i].rank == c[j].rank && c[i].at < c[j].at
}
func (c candidates) Swap(i, j int) { c[i], c[j] = c[j], c[i] }
func (c *candidates) Push(v any)   { *c = append(*c, v.(candidate)) }
func (c *candidates) Pop() any {
	last := (*c)[len(*c)-1]
	*c = (*c)[:len(*c)-1]
	return last
}

// short is the length up to which searching for the best pair repeatedly is cheaper
// than a heap.
const short = 32

// apply merges the tokens of a piece in place, and returns the rest.
func (m merges) apply(ids []uint32) []uint32 {
	if len(ids) > short {
		return m.applyLong(ids)
	}
	for len(ids) > 1 {
		best, at := merge{rank: math.MaxInt32}, -1
		for i := range len(ids) - 1 {
			if found, ok := m[[2]uint32{ids[i], ids[i+1]}]; ok && found.rank < best.rank {
				best, at = found, i
			}
		}
		if at < 0 {
			break
		}
		ids[at] = best.result
		ids = append(ids[:at+1], ids[at+2:]...)
	}
	return ids
}

// applyLong takes O(n log n) time, so that a piece of a megabyte does no harm.
func (m merges) applyLong(ids []uint32) []uint32 {
	all := make([]symbol, len(ids))
	for i, id := range ids {
		all[i] = symbol{id: id, prev: int32(i) - 1, next: int32(i) + 1}
	}
	all[len(all)-1].next = -1
	var open candidates
	look := func(at int32) {
		if at < 0 || all[at].next < 0 {
			return
		}
		left, right := all[at].id, all[all[at].next].id
		if found, ok := m[[2]uint32{left, right}]; ok {
			heap.Push(&open, candidate{found.rank, at, left, right})
		}
	}
	for i := range all {
		look(int32(i))
	}
	for len(open) > 0 {
		c := heap.Pop(&open).(candidate)
		a := &all[c.at]
		if a.gone || a.id != c.left || a.next < 0 || all[a.next].id != c.right {
			continue // one of them has been merged since
		}
		b := &all[a.next]
		a.id = m[[2]uint32{c.left, c.right}].result
		b.gone = true
		if a.next = b.next; a.next >= 0 {
			all[a.next].prev = c.at
		}
		look(a.prev)
		look(c.at)
	}
	ids = ids[:0]
	for at := int32(0); at >= 0; at = all[at].next {
		ids = append(ids, all[at].id)
	}
	return ids
}
