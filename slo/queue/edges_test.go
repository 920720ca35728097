package queue_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/slo/queue"
)

// A request is settled in the band in which it was dispatched: a band that has been
// empty since starts anew and charges nothing for earlier requests.
func TestQueueSettlesWithItsOwnBand(t *testing.T) {
	q := newQueue(t, queue.Config{})
	q.push(t, queue.Item[string]{Tenant: "a", Value: "before"})
	before, ok := q.Pop(epoch, 0)
	require.True(t, ok)
	q.push(t,
		queue.Item[string]{Tenant: "a", Value: "a1"}, queue.Item[string]{Tenant: "b", Value: "b1"},
		queue.Item[string]{Tenant: "a", Value: "a2"}, queue.Item[string]{Tenant: "b", Value: "b2"})
	q.Settle(before, 1000, 1000)
	assert.Equal(t, []string{"a1", "b1", "a2", "b2"}, q.drain(epoch))

	// A request dispatched in this band is charged.
	q.push(t, queue.Item[string]{Tenant: "a", Value: "now"}, queue.Item[string]{Tenant: "a", Value: "a1"}, queue.Item[string]{Tenant: "b", Value: "b1"})
	now, ok := q.Pop(epoch, 0)
	require.True(t, ok)
	q.push(t, queue.Item[string]{Tenant: "b", Value: "b2"}, queue.Item[string]{Tenant: "a", Value: "a2"})
	q.Settle(now, 1000, 1000)
	assert.Equal(t, []string{"b1", "b2", "a1", "a2"}, q.drain(epoch))
}

// Errors name the priority, the wait and the number of requests still held.
func TestQueueErrors(t *testing.T) {
	var dropped []*queue.Error
	q, err := queue.New(queue.Config{MaxRequests: 2, MaxTokens: 100, Timeout: time.Second}, func(_ queue.Item[string], err error) {
		var e *queue.Error
		require.ErrorAs(t, err, &e)
		dropped = append(dropped, e)
	})
	require.NoError(t, err)
	push := func(ms int, i queue.Item[string]) error {
		_, err := q.Push(at(ms), i)
		return err
	}
	require.NoError(t, push(0, queue.Item[string]{Priority: 1, Tokens: 60}))
	require.NoError(t, push(100, queue.Item[string]{Priority: -1, Tokens: 10}))
	assert.Equal(t, &queue.Error{Reason: queue.ErrTooLarge, Priority: 3, Requests: 2}, push(200, queue.Item[string]{Priority: 3, Tokens: 101}))
	assert.Equal(t, &queue.Error{Reason: queue.ErrFull, Priority: -2, Requests: 2}, push(200, queue.Item[string]{Priority: -2}))
	assert.Empty(t, dropped)
	require.NoError(t, push(300, queue.Item[string]{Priority: 2, Tokens: 5}))
	assert.Equal(t, []*queue.Error{{Reason: queue.ErrShed, Priority: -1, Waited: 200 * time.Millisecond, Requests: 2}}, dropped)
	q.Pop(at(1000), 1)
	require.Len(t, dropped, 2)
	assert.Equal(t, &queue.Error{Reason: queue.ErrTimeout, Priority: 1, Waited: time.Second, Requests: 1}, dropped[1])
	assert.Equal(t, queue.Stats{Pushed: 3, Refused: 2, Shed: 1, TimedOut: 1, Requests: 1, Tokens: 5}, q.Stats())
}

// Slots are reused, also those of refused newcomers: a refused request takes no memory.
func TestQueueRefusalsLeaveNothing(t *testing.T) {
	q := newQueue(t, queue.Config{MaxRequests: 1})
	q.push(t, queue.Item[string]{Priority: 1, Value: "stays"})
	refuse := func() {
		_, err := q.Push(epoch, queue.Item[string]{Tenant: "x"})
		require.ErrorIs(t, err, queue.ErrFull)
	}
	for range 100 {
		refuse()
	}
	assert.Equal(t, 2, queue.Places(q.Queue))
	assert.Equal(t, 1, q.Stats().Requests)
	assert.Equal(t, []string{"stays"}, q.drain(epoch))
}

// Deadlines are on the holder's clock and move with it: after a leap, requests are
// ordered by the time each has left.
func TestQueueDeadlinesAfterALeap(t *testing.T) {
	for _, leap := range []int{3_600_000, -3_600_000} {
		q := newQueue(t, queue.Config{})
		q.push(t, queue.Item[string]{Value: "none"}, queue.Item[string]{Value: "in ten", Deadline: at(10_000)}, queue.Item[string]{Value: "in two", Deadline: at(2000)})
		require.Zero(t, q.expire(at(leap)))
		for value, ms := range map[string]int{"in twelve": 12_000, "in eight": 8000, "in one": 1000} {
			_, err := q.Push(at(leap), queue.Item[string]{Value: value, Deadline: at(leap + ms)})
			require.NoError(t, err)
		}
		assert.Equal(t, []string{"in one", "in two", "in eight", "in ten", "in twelve", "none"}, q.drain(at(leap)))
	}
}

// A request that has left, in whatever way, is released: its value may hold a whole body.
func TestQueueLetsGo(t *testing.T) {
	q, err := queue.New(queue.Config{MaxRequests: 3, Timeout: time.Second}, func(queue.Item[*[1024]byte], error) {})
	require.NoError(t, err)
	left := map[string]weak.Pointer[[1024]byte]{}
	push := func(name string, ms, priority int) queue.Handle {
		value := new([1024]byte)
		left[name] = weak.Make(value)
		h, err := q.Push(at(ms), queue.Item[*[1024]byte]{Value: value, Priority: priority})
		if name == "refused" {
			require.ErrorIs(t, err, queue.ErrFull)
		} else {
			require.NoError(t, err)
		}
		return h
	}
	push("times out", 0, 0)
	push("shed", 500, 0)
	push("popped", 600, 7)
	canceled := push("canceled", 1100, 1)
	push("stays", 1100, 1)
	push("refused", 1100, -1)
	_, ok := q.Pop(at(1100), 0)
	require.True(t, ok)
	_, ok = q.Cancel(canceled)
	require.True(t, ok)
	require.Equal(t, queue.Stats{Pushed: 5, Dispatched: 1, TimedOut: 1, Shed: 1, Canceled: 1, Refused: 1, Requests: 1, Tokens: 1}, q.Stats())
	for name, value := range left {
		gone := func() bool { runtime.GC(); return value.Value() == nil }
		if name == "stays" {
			assert.False(t, gone())
		} else {
			assert.Eventually(t, gone, 30*time.Second, time.Millisecond, name)
		}
	}
	assert.Equal(t, 1, q.Stats().Requests)
}

// Tenants in debt are remembered up to the bound, even if many that do not wait are
// settled; besides them, as many more as there are waiting tenants.
func TestQueueDebtorsAreBounded(t *testing.T) {
	const many = 3000
	tenants := func(waiting int) int {
		q := newQueue(t, queue.Config{MaxRequests: 2 * many})
		for i := range waiting {
			q.push(t, queue.Item[string]{Tenant: fmt.Sprint("waits", i), Tokens: 1})
		}
		var popped []queue.Item[string]
		for i := range many {
			q.push(t, queue.Item[string]{Tenant: fmt.Sprint(i), Tokens: 10, Deadline: at(1)})
			item, ok := q.Pop(epoch, 0)
			require.True(t, ok)
			popped = append(popped, item)
		}
		for _, item := range popped {
			q.Settle(item, 1000, 1000)
		}
		return queue.RememberedTenants(q.Queue)
	}
	assert.Equal(t, 1+1024+1, tenants(1))
	assert.Equal(t, 2500+many, tenants(2500))
	assert.Equal(t, 1500+1024+1500, tenants(1500))
}

// A refund lets a tenant go earlier, and nobody else: who comes back after it is
// not ahead of those that have waited.
func TestARefundTurnsNoTimeBack(t *testing.T) {
	q := newQueue(t, queue.Config{})
	of := func(tenant, name string) queue.Item[string] {
		return queue.Item[string]{Tenant: tenant, Tokens: 100, Value: name}
	}
	for i := range 4 {
		q.push(t, of("a", fmt.Sprint("a", i)), of("b", fmt.Sprint("b", i)))
	}
	var popped []queue.Item[string]
	pop := func() string {
		item, ok := q.Pop(epoch, 0)
		require.True(t, ok)
		popped = append(popped, item)
		return item.Value
	}
	require.Equal(t, []string{"a0", "b0", "a1", "b1"}, []string{pop(), pop(), pop(), pop()})
	q.Settle(popped[0], 0, 0) // neither was served
	q.Settle(popped[2], 0, 0)
	require.Equal(t, "a2", pop(), "a has had nothing")
	q.push(t, of("c", "c"))
	assert.Equal(t, "a3", pop(), "c has not waited for what b has had")
}
