package queue

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/check"
)

// TokenBucket lets in refill input tokens per second on average, and a full bucket
// of capacity tokens at once (BLIS, "Admission Pipeline"); both are above zero. It
// starts full, and rejects with a [RateLimitError]. A request of unknown length
// costs one token.
//
// Package quota has a bucket for each tenant, which counts output too.
func TokenBucket(capacity, refill float64) endpick.Admitter {
	return &tokenBucket{capacity: capacity, rate: refill, tokens: capacity}
}

type tokenBucket struct {
	capacity, rate float64

	mu     sync.Mutex
	tokens float64
	at     time.Time // time of tokens
}

func (b *tokenBucket) Validate() error {
	for _, v := range []float64{b.capacity, b.rate} {
		if !(v > 0) || math.IsInf(v, 1) {
			return check.Bad("queue.TokenBucket", "has a capacity of %v and a refill of %v, not both above zero and finite", b.capacity, b.rate)
		}
	}
	return nil
}

// RateLimitError says what the bucket lacked.
type RateLimitError struct {
	Need, Have float64 // input tokens
	// RetryAfter is when the bucket will hold enough, if nobody else takes
	// from it. Zero: never, the request is larger than the bucket.
	RetryAfter time.Duration
}

func (e *RateLimitError) Error() string {
	if e.RetryAfter == 0 {
		return fmt.Sprintf("queue: rate limited: %.0f tokens are more than the bucket can hold", e.Need)
	}
	return fmt.Sprintf("queue: rate limited: %.0f of %.0f tokens, try again in %v", e.Have, e.Need, e.RetryAfter)
}

// Refusal is what the client learns, and when to try again; see [endpick.Admitter].
func (e *RateLimitError) Refusal() (message string, retryAfter time.Duration) {
	if e.RetryAfter == 0 {
		return "the prompt is longer than the rate limit allows at any time", 0
	}
	return fmt.Sprintf("the rate limit is reached: try again in %v", e.RetryAfter.Round(time.Millisecond)), e.RetryAfter
}

func (b *tokenBucket) Admit(req *endpick.Request, _ []endpick.Candidate) error {
	need := float64(max(req.InputTokens, 1))
	b.mu.Lock()
	defer b.mu.Unlock()
	// Routers call concurrently: an earlier time adds nothing.
	if passed := req.Now().Sub(b.at).Seconds(); passed > 0 {
		b.tokens = min(b.tokens+passed*b.rate, b.capacity)
		b.at = req.Now()
	}
	// Forgive rounding errors of refills, so that a request that comes back after
	// RetryAfter is admitted.
	if rounding := 1e-12 * b.capacity; b.tokens >= need-rounding {
		b.tokens -= need
		return nil
	}
	err := &RateLimitError{Need: need, Have: b.tokens}
	if need <= b.capacity {
		wait := math.Ceil((need - b.tokens) / b.rate * float64(time.Second))
		err.RetryAfter = time.Duration(min(wait, math.MaxInt64/2))
	}
	return err
}

// Withdrawn refunds a request that is not routed after all.
func (b *tokenBucket) Withdrawn(req *endpick.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(b.tokens+float64(max(req.InputTokens, 1)), b.capacity)
}
