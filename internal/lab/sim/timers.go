package sim

import (
	"time"

	"github.com/google/btree"
)

// timers has a timer for each owner. Simultaneous ones fire in order of owner.
type timers struct {
	due []timer // by owner
	on  *btree.BTreeG[timer]
}

type timer struct {
	at    time.Duration
	owner int
}

func newTimers(owners int) *timers {
	t := &timers{on: btree.NewG(8, func(a, b timer) bool { return a.at < b.at || a.at == b.at && a.owner < b.owner })}
	for range owners {
		t.add()
	}
	return t
}

// add adds an owner.
func (t *timers) add() int {
	owner := len(t.due)
	t.due = append(t.due, timer{owner: owner})
	return owner
}

// set sets the owner's timer, or stops it.
func (t *timers) set(owner int, at time.Duration, on bool) {
	own := &t.due[owner]
	t.on.Delete(*own)
	if own.at = at; on {
		t.on.ReplaceOrInsert(*own)
	}
}

// first returns the owner whose timer fires next.
func (t *timers) first() (owner int, at time.Duration, ok bool) {
	next, ok := t.on.Min()
	return next.owner, next.at, ok
}
