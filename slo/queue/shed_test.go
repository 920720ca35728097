package queue_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/slo/queue"
)

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
