package health

import (
	"sync"
	"time"
)

// Budget bounds retries to a share of the requests, so that a fleet in trouble
// is not given a multiple of its load. It is a bucket of tokens: each request
// puts share of a token in, each second refill tokens, and each retry takes one
// out. It is safe for concurrent use.
type Budget struct {
	share, refill, most float64

	mu     sync.Mutex
	tokens float64
	at     time.Time
}

// NewBudget returns a bucket that is full.
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

// advance puts in what has come since the last call; a clock that steps back
// puts in nothing.
func (b *Budget) advance(now time.Time) {
	if passed := now.Sub(b.at); passed > 0 {
		if !b.at.IsZero() {
			b.tokens = min(b.most, b.tokens+b.refill*passed.Seconds())
		}
		b.at = now
	}
}
