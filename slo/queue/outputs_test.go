package queue_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/queue"
)

// price is what a request costs its tenant, in prompt tokens: how many requests of others,
// of one token each, are popped before the tenant's next. Between the two, do is called
// with what was popped.
func price(t *testing.T, config queue.Config, item queue.Item[string], do func(*queue.Queue[string], queue.Item[string])) int {
	const most = 200
	q := newQueue(t, config)
	item.Tenant, item.Deadline, item.Value = "a", at(1), "a"
	q.push(t, item, queue.Item[string]{Tenant: "a", Deadline: at(1), Value: "next"})
	for range most {
		q.push(t, queue.Item[string]{Tenant: "b", Tokens: 1, Value: "other"})
	}
	popped, ok := q.Pop(epoch, 0)
	require.True(t, ok)
	require.Equal(t, "a", popped.Value)
	if do != nil {
		do(q.Queue, popped)
	}
	for n := range most {
		next, ok := q.Pop(epoch, 0)
		require.True(t, ok)
		if next.Value == "next" {
			return n
		}
	}
	return most
}

// A request costs its estimate at dispatch, and what it really took in the end.
func TestQueuePrices(t *testing.T) {
	for _, tc := range []struct {
		weight       float64
		in, out      int // estimated
		tookIn, took int
		expected     int
		settled      int
	}{
		{0, 10, 20, 10, 20, 50, 50}, // output has twice the weight, as in VTC
		{2, 10, 20, 7, 30, 50, 67},
		{0, 10, 0, 10, 20, 10, 50}, // the output was unknown
		{0, 10, 20, 10, 0, 50, 10},
		{0, 0, 0, 0, 0, 1, 0}, // an unknown length costs one token, a request that was not served nothing
		{0, 0, 0, 30, 3, 1, 36},
		{1, 10, 20, 20, 10, 30, 30},
		{3, 10, 20, 20, 10, 70, 50},
		{0.5, 4, 3, 4, 5, 6, 7}, // halves round up: 1.5 and 2.5
		{0.4, 4, 3, 4, 4, 5, 6}, // 1.2 and 1.6
		{0.01, 1, 20, 2, 1000, 1, 12},
		{0, 10, 20, -5, -7, 50, 0}, // negative counts become 0
	} {
		name := fmt.Sprintf("%+v", tc)
		config := queue.Config{OutputWeight: tc.weight}
		item := queue.Item[string]{Tokens: tc.in, OutputTokens: tc.out}
		assert.Equal(t, tc.expected, price(t, config, item, nil), name)
		assert.Equal(t, tc.settled, price(t, config, item, func(q *queue.Queue[string], i queue.Item[string]) {
			q.Settle(i, tc.tookIn, tc.took)
		}), name)
	}
}

// An engine's reported usage is bounded, so that no sum overflows and puts a tenant
// first that should be last.
func TestQueuePricesAreBounded(t *testing.T) {
	for _, took := range [][2]int{{math.MaxInt, 0}, {0, math.MaxInt}, {math.MaxInt, math.MaxInt}} {
		assert.Equal(t, 200, price(t, queue.Config{OutputWeight: 1e6}, queue.Item[string]{}, func(q *queue.Queue[string], i queue.Item[string]) {
			for range 1000 {
				q.Settle(i, took[0], took[1])
			}
		}))
	}
}

func TestQueueOutputWeight(t *testing.T) {
	drop := func(queue.Item[int], error) {}
	for _, w := range []float64{-1, math.Nextafter(0, -1), math.Nextafter(1e6, 2e6), math.Inf(1), math.NaN()} {
		_, err := queue.New(queue.Config{OutputWeight: w}, drop)
		var bad *endpick.ConfigError
		require.ErrorAs(t, err, &bad, "%v", w)
		assert.Equal(t, "queue.Config.OutputWeight", bad.Field)
		assert.Equal(t, fmt.Sprintf("is %v, not within 0 and 1e6", w), bad.Reason)
	}
	_, err := queue.New(queue.Config{OutputWeight: 1e6}, drop)
	assert.NoError(t, err)
}

// A request's expected output travels with it and does not count towards the queue's
// limits.
func TestQueueOutputOfItems(t *testing.T) {
	req := endpick.Request{InputTokens: 7, ExpectedOutputTokens: 9}
	assert.Equal(t, queue.Item[int]{Tokens: 7, OutputTokens: 9, Value: 5}, queue.NewItem(epoch, &req, 5))
	req.ExpectedOutputTokens = math.MaxInt
	item := queue.NewItem(epoch, &req, "much")
	assert.Equal(t, math.MaxInt32, item.OutputTokens, "a guess refuses nobody")

	q := newQueue(t, queue.Config{MaxTokens: 10})
	q.push(t, item)
	assert.EqualValues(t, 7, q.Stats().Tokens)
	_, err := q.Push(epoch, queue.Item[string]{OutputTokens: -1})
	require.ErrorAs(t, err, new(*endpick.RequestError))
	assert.ErrorContains(t, err, "queue.Item.OutputTokens is -1, outside 0 to 2147483647")
	assert.Equal(t, queue.Stats{Pushed: 1, Refused: 1, Requests: 1, Tokens: 7}, q.Stats())
}
