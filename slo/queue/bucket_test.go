package queue_test

import (
	"math"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/slo/queue"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func newBucket(capacity, refill float64) func(ms, tokens int) error {
	b := queue.TokenBucket(capacity, refill)
	return func(ms, tokens int) error {
		req := endpick.Request{InputTokens: tokens}.At(at(ms), 1, 1)
		return b.Admit(&req, nil)
	}
}

func TestTokenBucket(t *testing.T) {
	admit := newBucket(1000, 100)
	require.NoError(t, admit(0, 900))
	err := admit(1000, 250) // 100 + 100
	var limit *queue.RateLimitError
	require.ErrorAs(t, err, &limit)
	assert.Equal(t, queue.RateLimitError{Need: 250, Have: 200, RetryAfter: 500 * time.Millisecond}, *limit)
	assert.EqualError(t, err, "queue: rate limited: 200 of 250 tokens, try again in 500ms")
	require.NoError(t, admit(1500, 250))
	require.Error(t, admit(0, 1), "time that goes back refills nothing")
	require.NoError(t, admit(1510, 0), "an unknown length costs one token")
	require.Error(t, admit(1510, 0))
	require.NoError(t, admit(1_000_000, 1000), "full, and not more than full")
	require.Error(t, admit(1_000_000, 1))

	require.NoError(t, admit(2_000_000, 1))
	require.NoError(t, admit(0, 1), "time that goes back takes nothing away")

	require.ErrorAs(t, admit(2_000_000, 1001), &limit)
	assert.Zero(t, limit.RetryAfter)
	assert.EqualError(t, limit, "queue: rate limited: 1001 tokens are more than the bucket can hold")
}

// A request that comes back after RetryAfter is admitted without a nanosecond more,
// and a microsecond earlier it is not.
func TestTokenBucketRetryAfter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := float64(rapid.IntRange(1, 1000).Draw(t, "capacity"))
		b := queue.TokenBucket(capacity, rapid.Float64Range(1e5, 1e8).Draw(t, "refill"))
		now := at(0)
		admit := func() error {
			req := endpick.Request{InputTokens: int(capacity)}.At(now, 1, 1)
			return b.Admit(&req, nil)
		}
		require.NoError(t, admit())
		var limit *queue.RateLimitError
		require.ErrorAs(t, admit(), &limit)
		if limit.RetryAfter > time.Microsecond {
			now = at(0).Add(limit.RetryAfter - time.Microsecond)
			require.Error(t, admit())
			require.ErrorAs(t, admit(), &limit)
			require.InDelta(t, time.Microsecond, limit.RetryAfter, 2)
		}
		now = now.Add(limit.RetryAfter)
		require.NoError(t, admit())
	})
}

func TestTokenBucketConfig(t *testing.T) {
	for _, v := range []float64{0, -1, nan, math.Inf(1)} {
		for _, b := range []endpick.Admitter{queue.TokenBucket(v, 1), queue.TokenBucket(1, v)} {
			_, err := endpick.New(endpick.Config{Policy: endpick.Policy{Admitters: []endpick.Admitter{b}}})
			require.ErrorAs(t, err, new(*endpick.ConfigError))
		}
	}
}

func TestRejectAll(t *testing.T) {
	router := rig.Must(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "a"}}, Policy: endpick.Policy{Admitters: []endpick.Admitter{queue.RejectAll()}}}))
	assert.ErrorContains(t, rig.Err(router.Route(endpick.Request{})), "queue: every request is rejected")
}

// Withdrawn tokens refill the bucket, at most to its size.
func TestTokenBucketWithdrawn(t *testing.T) {
	b := queue.TokenBucket(1000, 100)
	withdrawn := b.(interface{ Withdrawn(*endpick.Request) }).Withdrawn
	req := func(tokens int) *endpick.Request {
		r := endpick.Request{InputTokens: tokens}.At(at(0), 1, 1)
		return &r
	}
	require.NoError(t, b.Admit(req(600), nil))
	require.Error(t, b.Admit(req(500), nil))
	withdrawn(req(600))
	require.NoError(t, b.Admit(req(500), nil))
	late := endpick.Request{InputTokens: 0}.At(at(3000), 1, 2)
	require.NoError(t, b.Admit(&late, nil)) // 800 − 1
	withdrawn(req(500))
	full := endpick.Request{InputTokens: 1000}.At(at(3000), 1, 3)
	require.NoError(t, b.Admit(&full, nil))
	require.Error(t, b.Admit(&late, nil), "it holds no more")
	withdrawn(&late)
	require.NoError(t, b.Admit(&late, nil), "an unknown length is one token")
	require.Error(t, b.Admit(&late, nil))
}
