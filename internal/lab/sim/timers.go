package sim

import (
	"container/heap"
	"time"
)

// timers is a heap of timers, one for each owner. Simultaneous ones fire in order
// of owner.
type timers struct {
	at    []time.Duration // by owner
	place []int           // by owner: index into heap, −1 if off
	heap  []int           // owners
}

func newTimers(owners int) *timers {
	t := &timers{}
	for range owners {
		t.add()
	}
	return t
}

// add adds an owner.
func (t *timers) add() int {
	t.at = append(t.at, 0)
	t.place = append(t.place, -1)
	return len(t.at) - 1
}

// set sets the owner's timer, or stops it.
func (t *timers) set(owner int, at time.Duration, on bool) {
	switch i := t.place[owner]; {
	case !on && i >= 0:
		heap.Remove(t, i)
	case on && i < 0:
		t.at[owner] = at
		heap.Push(t, owner)
	case on && at != t.at[owner]:
		t.at[owner] = at
		heap.Fix(t, i)
	}
}

// first returns the owner whose timer fires next.
func (t *timers) first() (owner int, at time.Duration, ok bool) {
	if len(t.heap) == 0 {
		return 0, 0, false
	}
	owner = t.heap[0]
	return owner, t.at[owner], true
}

// Len, Less, Swap, Push and Pop implement [heap.Interface].
func (t *timers) Len() int { return len(t.heap) }

func (t *timers) Less(i, j int) bool {
	a, b := t.heap[i], t.heap[j]
	return t.at[a] < t.at[b] || t.at[a] == t.at[b] && a < b
}

func (t *timers) Swap(i, j int) {
	t.heap[i], t.heap[j] = t.heap[j], t.heap[i]
	t.place[t.heap[i]], t.place[t.heap[j]] = i, j
}

func (t *timers) Push(owner any) {
	t.place[owner.(int)] = len(t.heap)
	t.heap = append(t.heap, owner.(int))
}

func (t *timers) Pop() any {
	owner := t.heap[len(t.heap)-1]
	t.heap = t.heap[:len(t.heap)-1]
	t.place[owner] = -1
	return owner
}
