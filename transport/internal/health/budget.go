package health

import (
	"sync"
	"time"
)

// Budget limits retries to a share of the requests, so that a fleet in trouble
// does not get a multiple of its load. It is a token bucket: each request adds
// share of a token, each second refill tokens, and each retry takes one. It is
// safe for concurrent use.
type Budget struct {
	share, refill, most float64

	mu     sync.Mutex
	tokens float64
	at     time.Time
}

// NewBudget returns a full bucket.
func NewBudget(share, refill, most float64) *Budget {
	return &Budget{share: share, refill: refill, most: most, tokens: most}
}

// Request counts a request.
func (b *Budget) Request(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(b.most, b.tokens+b.share)
	b.advance(now)
}

// Retry takes a token and returns true, or returns false if there is none.
func (b *Budget) Retry(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// advance adds what has flowed in since the last call, unless another goroutine's was later.
func (b *Budget) advance(now time.Time) {
	if passed := now.Sub(b.at); passed > 0 {
		b.tokens = min(b.most, b.tokens+b.refill*passed.Seconds()) // full at first
		b.at = now
	}
}
