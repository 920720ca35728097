package protocol

import (
	"slices"
	"strings"
	"time"
)

// Class is what requests of one kind have in common. It is sent once for all of them.
type Class struct {
	Model, Adapter, Tenant string
	TTFT, TPOT             time.Duration // targets
	Stream, Exact          bool
	Responses              int // computed in parallel; 0: one
}

// fits reports whether a class is within the limits.
func (c *Class) fits() bool {
	return len(c.Model) <= maxName && len(c.Adapter) <= maxName && len(c.Tenant) <= maxName
}

// numbers assigns numbers to names, in the log of this replica. A new name replaces the
// least recently used one.
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

// number returns a name's number, and whether it is new.
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
		at = slices.Index(n.used, slices.Min(n.used))
		delete(n.of, n.names[at])
		n.names[at] = name
	}
	n.of[name], n.used[at] = at, n.uses
	return at, true
}

// named has the names that numbers stand for in another's log.
type named[K any] []K

// set sets a name. Numbers come without gaps.
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
