package endpick

import (
	"math"
	"sync"
	"sync/atomic"
)

// expiring is a prefill that is to end at a known time.
type expiring struct {
	at         int64 // nanoseconds since the router's epoch
	slot       *leaseSlot
	generation uint32
}

// expiryHeap is a binary heap of prefills, the earliest first.
type expiryHeap struct {
	// earliest is the time of the first item, math.MaxInt64 if there is none.
	// It is read without the lock.
	earliest atomic.Int64
	mu       sync.Mutex
	items    []expiring
}

func (h *expiryHeap) push(x expiring) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.items = append(h.items, x)
	i := len(h.items) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if h.items[i].at >= h.items[parent].at {
			break
		}
		h.items[i], h.items[parent] = h.items[parent], h.items[i]
		i = parent
	}
	h.earliest.Store(h.items[0].at)
}

// pop takes out the earliest item if its time has come.
func (h *expiryHeap) pop(now int64) (expiring, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.items) == 0 || h.items[0].at > now {
		return expiring{}, false
	}
	x := h.items[0]
	last := len(h.items) - 1
	h.items[0] = h.items[last]
	h.items[last] = expiring{}
	h.items = h.items[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if h.items[child].at < h.items[least].at {
				least = child
			}
		}
		if least == i {
			break
		}
		h.items[i], h.items[least] = h.items[least], h.items[i]
		i = least
	}
	h.earliest.Store(math.MaxInt64)
	if last > 0 {
		h.earliest.Store(h.items[0].at)
	}
	return x, true
}
