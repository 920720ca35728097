package queue_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/slo/queue"
)

func TestQueueShedsWhatMattersLeast(t *testing.T) {
	q := newQueue(t, queue.Config{MaxRequests: 3})
	q.push(t,
		queue.Item[string]{Value: "batch late", Priority: -1, Deadline: at(90)},
		queue.Item[string]{Value: "batch early", Priority: -1, Deadline: at(10)},
		queue.Item[string]{Value: "normal"})
	_, err := q.Push(at(1), queue.Item[string]{Value: "batch later", Priority: -1, Deadline: at(99)})
	require.ErrorIs(t, err, queue.ErrFull)
	assert.Empty(t, q.dropped, "nobody makes room for a request that does not get in")

	_, err = q.Push(at(1), queue.Item[string]{Value: "high", Priority: 1})
	require.NoError(t, err)
	_, err = q.Push(at(2), queue.Item[string]{Value: "normal too"})
	require.NoError(t, err)
	assert.Equal(t, []string{
		"batch late: queue: shed to make room after 1ms",
		"batch early: queue: shed to make room after 2ms"}, q.dropped)
	assert.Equal(t, []string{"high", "normal", "normal too"}, q.drain(at(2)))
	assert.Equal(t, queue.Stats{Pushed: 5, Dispatched: 3, Shed: 2, Refused: 1}, q.Stats())
}

func TestQueueBoundsTokensAndBytes(t *testing.T) {
	q := newQueue(t, queue.Config{MaxTokens: 100, MaxBytes: 1000})
	_, err := q.Push(epoch, queue.Item[string]{Tokens: 101})
	require.ErrorIs(t, err, queue.ErrTooLarge)
	_, err = q.Push(epoch, queue.Item[string]{Bytes: 1001})
	require.ErrorIs(t, err, queue.ErrTooLarge)

	q.push(t, queue.Item[string]{Value: "a", Priority: -2, Tokens: 30, Bytes: 10},
		queue.Item[string]{Value: "b", Priority: -1, Tokens: 40, Bytes: 10}, queue.Item[string]{Value: "c", Tokens: 30, Bytes: 900})
	_, err = q.Push(epoch, queue.Item[string]{Value: "d", Priority: -1, Tokens: 80})
	require.ErrorIs(t, err, queue.ErrFull, "a, b and d together are not enough without c")
	assert.Empty(t, q.dropped)
	_, err = q.Push(epoch, queue.Item[string]{Value: "e", Tokens: 70})
	require.NoError(t, err, "two had to go for it")
	assert.Len(t, q.dropped, 2)
	assert.EqualValues(t, 100, q.Stats().Tokens)
	assert.EqualValues(t, 900, q.Stats().Bytes)
	_, err = q.Push(epoch, queue.Item[string]{Value: "f", Priority: 1, Tokens: 0, Bytes: 100})
	require.NoError(t, err)
	assert.Equal(t, []string{"f", "c"}, q.drain(epoch), "of one tenant the last to come went")
}

// A push that tries to make room and is refused in the end changes nobody's order.
func TestQueueRefusedPushChangesNoOrder(t *testing.T) {
	// Two tenants have been served 50 tokens each when one of them comes again.
	q := newQueue(t, queue.Config{MaxTokens: 300})
	for _, tenant := range []string{"a", "b", "a", "b"} {
		q.push(t, queue.Item[string]{Value: tenant, Tenant: tenant, Priority: -1, Tokens: 50, Deadline: at(1)})
	}
	for range 3 {
		_, ok := q.Pop(epoch, 0)
		require.True(t, ok)
	}
	q.push(t, queue.Item[string]{Value: "light", Tenant: "light"})
	_, err := q.Push(epoch, queue.Item[string]{Value: "heavy", Tenant: "heavy", Tokens: 300})
	require.ErrorIs(t, err, queue.ErrFull)
	for range 2 {
		q.push(t, queue.Item[string]{Value: "c", Tenant: "c", Priority: -1})
	}
	assert.Equal(t, []string{"light", "b", "c", "c"}, q.drain(epoch))

	// Each of many tenants has been served ten tokens.
	const many = 3000
	q = newQueue(t, queue.Config{MaxRequests: 2 * many, MaxTokens: 11 * many})
	for _, tokens := range []int{10, 1} {
		for i := range many {
			q.push(t, queue.Item[string]{Value: "had", Tenant: fmt.Sprint(i), Priority: -1, Tokens: tokens, Deadline: at(tokens)})
		}
	}
	for range many {
		_, ok := q.Pop(epoch, 0)
		require.True(t, ok)
	}
	q.push(t, queue.Item[string]{Value: "light", Tenant: "light"})
	_, err = q.Push(epoch, queue.Item[string]{Value: "heavy", Tenant: "heavy", Tokens: 11 * many})
	require.ErrorIs(t, err, queue.ErrFull)
	q.push(t, queue.Item[string]{Value: "new", Tenant: "new", Priority: -1})
	assert.Equal(t, []string{"light", "new", "had"}, q.drain(epoch)[:3])
}
