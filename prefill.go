package endpick

import (
	"cmp"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/btree"
)

// prefillTime is how long a prefill is thought to take at most, by its predicted TTFT: not longer than until the
// lease is reaped.
func (s *leaseSlot) prefillTime() time.Duration {
	p := &s.candidate.Prediction
	if !s.request.Stream {
		return min(p.TTFT, s.table.timeout)
	}
	return 3 * max(min(max(p.TTFT, p.TTFTUpper), s.table.timeout/3), time.Millisecond)
}

// before reports whether another request came after this one.
func (s *leaseSlot) before(number uint32) bool { return int32(number-uint32(s.request.number)) > 0 }

// endPrefill removes the request from the endpoint's prefill counts, once; s.mu is held.
func (s *leaseSlot) endPrefill() {
	if s.prefilling {
		s.prefilling = false
		s.table.expiry.remove(s)
		s.state.prefilling.Add(-1)
		s.state.prefillTokens.Add(-int64(s.prefillTokens))
	}
}

// expire ends the prefills that are thought to be over. Where a stream's first token is late, that takes another
// request that came after it and has been answered: since engines begin with whoever came first, its tokens are
// held back, as those of a tool call are. Otherwise it waits, or the endpoint hangs.
func (t *leaseTable) expire(now time.Time) {
	since := now.Sub(t.guard.epoch)
	for int64(since) >= t.expiry.earliest.Load() {
		x, ok := t.expiry.pop(int64(since))
		if !ok {
			return
		}
		s := x.slot
		s.mu.Lock()
		if s.prefillEnd == x.at { // else it has just ended, and the slot may have another
			if !s.request.Stream || s.before(s.state.answered.Load()) {
				s.endPrefill()
			} else {
				t.expiry.push(s, since+s.prefillTime())
			}
		}
		s.mu.Unlock()
	}
}

// expiring is a prefill that ends at a known time, a slot's prefillEnd.
type expiring struct {
	at   int64
	slot *leaseSlot
}

func (e expiring) before(o expiring) bool {
	return cmp.Or(cmp.Compare(e.at, o.at), cmp.Compare(e.slot.index, o.slot.index)) < 0
}

// expiry holds the prefills that end at a known time, the next one first.
type expiry struct {
	// earliest is the time of the first, math.MaxInt64 if there is none.
	// It is read without the lock.
	earliest atomic.Int64
	mu       sync.Mutex
	all      *btree.BTreeG[expiring]
}

func (x *expiry) start() {
	x.all = btree.NewG(32, expiring.before)
	x.note()
}

func (x *expiry) push(s *leaseSlot, at time.Duration) {
	s.prefillEnd = cmp.Or(int64(at), -1)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.all.ReplaceOrInsert(expiring{s.prefillEnd, s})
	x.note()
}

func (x *expiry) remove(s *leaseSlot) {
	if s.prefillEnd == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.all.Delete(expiring{s.prefillEnd, s})
	s.prefillEnd = 0
	x.note()
}

// pop removes and returns the first if it is due.
func (x *expiry) pop(now int64) (expiring, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e, ok := x.all.Min()
	if !ok || e.at > now {
		return expiring{}, false
	}
	x.all.DeleteMin()
	x.note()
	return e, true
}

// note sets earliest; x.mu is held.
func (x *expiry) note() {
	x.earliest.Store(math.MaxInt64)
	if e, ok := x.all.Min(); ok {
		x.earliest.Store(e.at)
	}
}
