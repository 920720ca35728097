package sim

import "time"

// timers is a heap of timers, one for each owner. Simultaneous ones fire in order
// of owner.
type timers struct {
	at    []time.Duration // by owner
	place []int           // by owner: index into heap, −1 if off
	heap  []int           // owners
}

func newTimers(owners int) *timers {
	t := &timers{at: make([]time.Duration, owners), place: make([]int, owners)}
	for i := range t.place {
		t.place[i] = -1
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
	i := t.place[owner]
	switch {
	case !on && i < 0:
	case !on:
		last := len(t.heap) - 1
		t.swap(i, last)
		t.heap = t.heap[:last]
		t.place[owner] = -1
		if i < last {
			t.down(i)
			t.up(i)
		}
	case i < 0:
		t.at[owner] = at
		t.place[owner] = len(t.heap)
		t.heap = append(t.heap, owner)
		t.up(len(t.heap) - 1)
	case at != t.at[owner]:
		t.at[owner] = at
		t.down(i)
		t.up(t.place[owner])
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

func (t *timers) less(i, j int) bool {
	a, b := t.heap[i], t.heap[j]
	if t.at[a] != t.at[b] {
		return t.at[a] < t.at[b]
	}
	return a < b
}

func (t *timers) swap(i, j int) {
	t.heap[i], t.heap[j] = t.heap[j], t.heap[i]
	t.place[t.heap[i]], t.place[t.heap[j]] = i, j
}

func (t *timers) up(i int) {
	for i > 0 && t.less(i, (i-1)/2) {
		t.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (t *timers) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(t.heap) {
			return
		}
		if child+1 < len(t.heap) && t.less(child+1, child) {
			child++
		}
		if !t.less(child, i) {
			return
		}
		t.swap(i, child)
		i = child
	}
}
