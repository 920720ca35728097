package queue

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/endpick/endpick"
)

// TokenBucketConfig configures a TokenBucket. Both fields are required.
type TokenBucketConfig struct {
	// Capacity is what the full bucket holds, in input tokens; above zero.
	Capacity float64
	// Refill is what flows in, in tokens per second; above zero.
	Refill float64
}

// TokenBucket is an admitter that lets in a number of input tokens per second
// on average, and a full bucket of them at once (BLIS, "Admission Pipeline").
// It starts full. A request of unknown length costs one token.
//
// It is safe for concurrent use. Package quota has one for each tenant, which counts
// output too.
type TokenBucket struct {
	config TokenBucketConfig

	mu     sync.Mutex
	tokens float64
	at     time.Time // time of tokens
}

// NewTokenBucket returns a TokenBucket, or an [endpick.ConfigError].
func NewTokenBucket(config TokenBucketConfig) (*TokenBucket, error) {
	for _, f := range []struct {
		name string
		v    float64
	}{{"Capacity", config.Capacity}, {"Refill", config.Refill}} {
		if !(f.v > 0) || math.IsInf(f.v, 1) {
			return nil, &endpick.ConfigError{Field: "queue.TokenBucketConfig." + f.name, Reason: fmt.Sprintf("is %v, not above zero and finite", f.v)}
		}
	}
	return &TokenBucket{config: config, tokens: config.Capacity}, nil
}

// RateLimitError says what the bucket lacked. It matches ErrRateLimited.
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

// Unwrap returns ErrRateLimited.
func (e *RateLimitError) Unwrap() error { return ErrRateLimited }

// Admit implements [endpick.Admitter].
func (b *TokenBucket) Admit(req *endpick.Request, _ []endpick.Candidate) error {
	need := float64(max(req.InputTokens, 1))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(req.Now())
	// Forgive rounding errors of refills, so that a request that comes back after
	// RetryAfter is admitted.
	if rounding := 1e-12 * b.config.Capacity; b.tokens >= need-rounding {
		b.tokens -= need
		return nil
	}
	err := &RateLimitError{Need: need, Have: b.tokens}
	if need <= b.config.Capacity {
		wait := math.Ceil((need - b.tokens) / b.config.Refill * float64(time.Second))
		err.RetryAfter = time.Duration(min(wait, math.MaxInt64/2))
	}
	return err
}

// Withdrawn refunds a request that is not routed after all.
func (b *TokenBucket) Withdrawn(req *endpick.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(b.tokens+float64(max(req.InputTokens, 1)), b.config.Capacity)
}

// refill adds what has flowed in since the last call; b.mu is held. Routers call
// concurrently, so an earlier time adds nothing. A time that is earlier by more
// than the bucket takes to fill means that the clock has been set back: the
// bucket continues from there, or nothing would flow in until the clock has
// caught up.
func (b *TokenBucket) refill(now time.Time) {
	full := max(b.config.Capacity/b.config.Refill, 1)
	switch passed := now.Sub(b.at).Seconds(); {
	case passed < -full:
		b.at = now
	case passed > 0:
		b.tokens = min(b.tokens+passed*b.config.Refill, b.config.Capacity)
		b.at = now
	}
}
