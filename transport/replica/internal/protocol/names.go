package protocol

import (
	"strings"
	"time"
)

// Class is what requests of a kind have in common, sent once for all of them.
type Class struct {
	Model, Adapter, Tenant string
	TTFT, TPOT             time.Duration // targets
	Stream, Exact          bool
}

// fits reports whether a class can be sent.
func (c *Class) fits() bool {
	return len(c.Model) <= maxName && len(c.Adapter) <= maxName && len(c.Tenant) <= maxName
}

// numbers gives names numbers, in the log of this replica: the least recently used name
// gives its number to the next.
type numbers[K comparable] struct {
	most  int
	clone func(K) K // a name may be part of a request's body
	of    map[K]int
	names []K
	used  []uint64
	uses  uint64
}

func newNumbers[K comparable](most int, clone func(K) K) *numbers[K] {
	return &numbers[K]{most: most, clone: clone, of: map[K]int{}}
}

func cloneClass(c Class) Class {
	c.Model, c.Adapter, c.Tenant = strings.Clone(c.Model), strings.Clone(c.Adapter), strings.Clone(c.Tenant)
	return c
}

// number returns that of a name, and whether it has just been given.
func (n *numbers[K]) number(name K) (number int, isNew bool) {
	n.uses++
	if i, ok := n.of[name]; ok {
		n.used[i] = n.uses
		return i, false
	}
	name = n.clone(name)
	at := len(n.names)
	if at < n.most {
		n.names, n.used = append(n.names, name), append(n.used, 0)
	} else {
		at = 0
		for i, used := range n.used {
			if used < n.used[at] {
				at = i
			}
		}
		delete(n.of, n.names[at])
		n.names[at] = name
	}
	n.of[name], n.used[at] = at, n.uses
	return at, true
}

// named is what the numbers of another's log stand for.
type named[K any] []K

// set takes in a name. Numbers come without gaps.
func (n *named[K]) set(number int, name K) bool {
	switch {
	case number < len(*n):
		(*n)[number] = name
	case number == len(*n):
		*n = append(*n, name)
	default:
		return false
	}
	return true
}

func (n named[K]) get(number int) (name K, ok bool) {
	if number >= len(n) {
		return name, false
	}
	return n[number], true
}
