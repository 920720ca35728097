package queue_test

import (
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/scorertest"
	"github.com/endpick/endpick/slo/queue"
)

var epoch = time.Unix(1_700_000_000, 0)

var nan = math.NaN()

func at(ms int) time.Time { return epoch.Add(time.Duration(ms) * time.Millisecond) }

// held is a queue and a record of what it dropped.
type held struct {
	*queue.Queue[string]
	dropped []string
}

func newQueue(t require.TestingT, config queue.Config) *held {
	h := &held{}
	q, err := queue.New(config, func(i queue.Item[string], err error) {
		var qe *queue.Error
		require.ErrorAs(t, err, &qe)
		h.dropped = append(h.dropped, fmt.Sprintf("%s: %v after %v", i.Value, qe.Reason, qe.Waited))
	})
	require.NoError(t, err)
	h.Queue = q
	return h
}

// expire lets time pass, and returns how many requests it dropped.
func (h *held) expire(now time.Time) int {
	before := len(h.dropped)
	h.Pop(now, 1)
	return len(h.dropped) - before
}

// drain pops everything and returns the order.
func (h *held) drain(now time.Time) (order []string) {
	for {
		item, ok := h.Pop(now, 0)
		if !ok {
			return order
		}
		order = append(order, item.Value)
	}
}

func (h *held) push(t require.TestingT, items ...queue.Item[string]) {
	for _, i := range items {
		_, err := h.Push(epoch, i)
		require.NoError(t, err)
	}
}

func TestQueueOrder(t *testing.T) {
	for _, tc := range []struct {
		name  string
		items []queue.Item[string]
		want  []string
	}{
		{"the first to come", []queue.Item[string]{{Value: "a"}, {Value: "b"}, {Value: "c"}}, []string{"a", "b", "c"}},
		{"priority before deadline", []queue.Item[string]{
			{Value: "shed", Priority: -1, Deadline: at(1)}, {Value: "normal", Deadline: at(5)}, {Value: "high", Priority: 7},
		}, []string{"high", "normal", "shed"}},
		{"the earliest deadline, none comes last", []queue.Item[string]{
			{Value: "none"}, {Value: "late", Deadline: at(9)}, {Value: "early", Deadline: at(3)}, {Value: "early too", Deadline: at(3)},
		}, []string{"early", "early too", "late", "none"}},
		// A request with a day's deadline does not get ahead of those without one,
		// nor of those that are dropped sooner.
		{"no deadline is later than the end of the wait", []queue.Item[string]{
			{Value: "none"}, {Value: "a day", Deadline: epoch.Add(24 * time.Hour)}, {Value: "half a minute", Deadline: at(30_000)},
			{Value: "hasty", Timeout: 20 * time.Second}, {Value: "hasty too", Timeout: 20 * time.Second, Deadline: at(25_000)},
		}, []string{"hasty", "hasty too", "none", "a day", "half a minute"}},
		{"the extremes of priority", []queue.Item[string]{
			{Value: "least", Priority: math.MinInt}, {Value: "most", Priority: math.MaxInt}, {Value: "normal"},
		}, []string{"most", "normal", "least"}},
		// A flooded the queue first and has tight deadlines; B and C get every other
		// turn while they have requests.
		{"tenants take turns", []queue.Item[string]{
			{Value: "a1", Tenant: "a", Deadline: at(1)}, {Value: "a2", Tenant: "a", Deadline: at(1)},
			{Value: "a3", Tenant: "a", Deadline: at(1)}, {Value: "b1", Tenant: "b"}, {Value: "b2", Tenant: "b"},
			{Value: "c1", Tenant: "c", Deadline: at(9)},
		}, []string{"a1", "c1", "b1", "a2", "b2", "a3"}},
		// A's first prompt costs 100 tokens, so B's ten requests of 10 tokens come
		// before the second.
		{"the order is by tokens", []queue.Item[string]{
			{Value: "A", Tenant: "a", Tokens: 100}, {Value: "A", Tenant: "a", Tokens: 100},
			{Value: "b", Tenant: "b", Tokens: 40}, {Value: "b", Tenant: "b", Tokens: 40},
			{Value: "b", Tenant: "b", Tokens: 40}, {Value: "b", Tenant: "b", Tokens: 40},
		}, []string{"A", "b", "b", "b", "A", "b"}},
		{"tokens are counted within a priority", []queue.Item[string]{
			{Value: "a", Tenant: "a", Tokens: 1000, Priority: 1}, {Value: "a0", Tenant: "a"}, {Value: "b0", Tenant: "b"},
		}, []string{"a", "a0", "b0"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := newQueue(t, queue.Config{})
			q.push(t, tc.items...)
			assert.Equal(t, tc.want, q.drain(epoch))
			assert.Zero(t, q.Stats().Requests)
		})
	}
}

func TestQueueHoldsWhileTheEndpointsAreFull(t *testing.T) {
	q := newQueue(t, queue.Config{})
	q.push(t, queue.Item[string]{Value: "a"})
	for _, full := range []float64{1, 1.5, nan} {
		_, ok := q.Pop(epoch, full)
		assert.False(t, ok, "saturation %v", full)
	}
	// Late binding: a more important request that arrived meanwhile goes first.
	q.push(t, queue.Item[string]{Value: "b", Priority: 1})
	item, ok := q.Pop(at(10), 0.99)
	require.True(t, ok)
	assert.Equal(t, "b", item.Value)
}

// An owner with nothing to do until the next expiry makes no calls: that is not
// a leap of its clock.
func TestQueueLongWaitsCount(t *testing.T) {
	q := newQueue(t, queue.Config{Timeout: time.Hour})
	q.push(t, queue.Item[string]{Value: "a"})
	const minute = 60_000
	assert.Zero(t, q.expire(at(59*minute)))
	assert.Equal(t, 1, q.expire(at(60*minute)))
	q = newQueue(t, queue.Config{Timeout: time.Hour})
	q.push(t, queue.Item[string]{Value: "a"})
	assert.Equal(t, 1, q.expire(at(61*minute)), "a minute late")
	q = newQueue(t, queue.Config{Timeout: time.Hour})
	q.push(t, queue.Item[string]{Value: "a"})
	assert.Zero(t, q.expire(at(61*minute+1)), "a leap: nobody has waited")
	next, _ := q.NextExpiry()
	assert.Equal(t, at(121*minute+1), next)
}

func TestQueueForgetsTenants(t *testing.T) {
	q := newQueue(t, queue.Config{MaxRequests: 10})
	q.push(t, queue.Item[string]{Value: "always there", Priority: 0, Tenant: "always", Tokens: 1 << 30, Deadline: at(1 << 30)})
	for i := range 5000 {
		q.push(t, queue.Item[string]{Value: "x", Tenant: fmt.Sprint(i)})
		item, ok := q.Pop(epoch, 0)
		require.True(t, ok)
		if item.Value != "x" {
			require.Zero(t, i)
		}
	}
	assert.InDelta(t, 1050, queue.RememberedTenants(q.Queue), 50)

	q = newQueue(t, queue.Config{})
	q.push(t, queue.Item[string]{Value: "a", Tenant: "a"}, queue.Item[string]{Value: "z", Tenant: "z"})
	handle, err := q.Push(epoch, queue.Item[string]{Value: "gone", Tenant: "gone"})
	require.NoError(t, err)
	_, ok := q.Cancel(handle)
	require.True(t, ok)
	assert.Equal(t, 2, queue.RememberedTenants(q.Queue), "one of whom nothing was dispatched")
	_, _ = q.Pop(epoch, 0)
	assert.Equal(t, 2, queue.RememberedTenants(q.Queue), "one that is ahead of the others")
	_, _ = q.Pop(epoch, 0)
	assert.Zero(t, queue.RememberedTenants(q.Queue), "nobody waits")
}

// Of too many tenants that are ahead, those furthest ahead are remembered.
func TestQueueForgetsTheLeastAhead(t *testing.T) {
	q := newQueue(t, queue.Config{MaxRequests: 10})
	q.push(t, queue.Item[string]{Value: "always there", Tenant: "always", Deadline: at(10_000)})
	serve := func(tenant string, tokens int) {
		q.push(t, queue.Item[string]{Value: "x", Tenant: tenant, Tokens: tokens, Deadline: at(1)})
		item, ok := q.Pop(epoch, 0)
		require.True(t, ok)
		require.Equal(t, "x", item.Value)
	}
	serve("far ahead", 1000)
	for i := range 3000 {
		serve(fmt.Sprint(i), 10)
	}
	q.push(t, queue.Item[string]{Value: "far ahead", Tenant: "far ahead", Deadline: at(1)}, queue.Item[string]{Value: "new", Tenant: "new"})
	assert.Equal(t, []string{"always there", "new", "far ahead"}, q.drain(epoch))
}

// wide converts a number that a 32-bit int can't hold; tests of such numbers
// begin with needsWideInts.
func wide(n int64) int { return int(n) }

func needsWideInts(t *testing.T) {
	t.Helper()
	if strconv.IntSize < 64 {
		t.Skip("int has 32 bits")
	}
}

func TestQueueBadInput(t *testing.T) {
	needsWideInts(t)
	q := newQueue(t, queue.Config{})
	for field, item := range map[string]queue.Item[string]{
		"Tokens is -1, outside 0 to 2147483647":         {Tokens: -1},
		"Tokens is 2147483648, outside":                 {Tokens: wide(1 << 31)},
		"Bytes is -1, outside 0 to 1099511627776":       {Bytes: -1},
		"Bytes is 9223372036854775807, outside":         {Bytes: math.MaxInt},
		"Timeout is -1, outside 0 to 92233720368547758": {Timeout: -1},
	} {
		_, err := q.Push(epoch, item)
		require.ErrorAs(t, err, new(*endpick.RequestError))
		assert.ErrorContains(t, err, "queue.Item."+field)
	}
	assert.Zero(t, q.Stats().Requests)
	assert.Equal(t, queue.Stats{Refused: 5}, q.Stats())
	for _, c := range []queue.Config{{MaxRequests: -1}, {MaxTokens: -1}, {MaxBytes: -1}, {Timeout: -1}} {
		_, err := queue.New(c, func(queue.Item[int], error) {})
		require.ErrorAs(t, err, new(*endpick.ConfigError))
	}
	_, err := queue.New[int](queue.Config{}, nil)
	require.ErrorAs(t, err, new(*endpick.ConfigError))
}

// If its owner's callback panics, the queue loses no request: the others are
// reported in the next call, and the one being pushed is in.
func TestQueueSurvivesAPanicOfItsHolder(t *testing.T) {
	var dropped []string
	q, err := queue.New(queue.Config{MaxTokens: 3}, func(i queue.Item[string], err error) {
		if dropped = append(dropped, i.Value); i.Value == "b" {
			panic("boom")
		}
	})
	require.NoError(t, err)
	for _, v := range []string{"a", "b", "c"} {
		_, err := q.Push(epoch, queue.Item[string]{Value: v, Priority: -1})
		require.NoError(t, err)
	}
	assert.PanicsWithValue(t, "boom", func() { _, _ = q.Push(epoch, queue.Item[string]{Value: "large", Tokens: 3}) })
	assert.Equal(t, []string{"c", "b"}, dropped)
	item, ok := q.Pop(epoch, 0)
	require.True(t, ok)
	assert.Equal(t, "large", item.Value)
	assert.Equal(t, []string{"c", "b", "a"}, dropped)
	assert.Zero(t, q.Stats().Requests)
	assert.Equal(t, queue.Stats{Pushed: 4, Dispatched: 1, Shed: 3}, q.Stats())
}

// Sums of the largest sizes do not overflow, and a clock that is set back makes
// no wait negative.
func TestQueueExtremes(t *testing.T) {
	needsWideInts(t)
	q := newQueue(t, queue.Config{MaxRequests: 3, MaxBytes: math.MaxInt64, Timeout: math.MaxInt64})
	huge := queue.Item[string]{Value: "huge", Tenant: "a", Tokens: math.MaxInt32, Bytes: wide(1 << 40)}
	q.push(t, huge, huge, queue.Item[string]{Value: "small", Tenant: "b"})
	assert.Equal(t, int64(2*math.MaxInt32+1), q.Stats().Tokens)
	assert.Equal(t, int64(2<<40), q.Stats().Bytes)
	_, err := q.Push(at(-1000), queue.Item[string]{Value: "high", Priority: math.MaxInt})
	require.NoError(t, err)
	assert.Equal(t, []string{"huge: queue: shed to make room after 0s"}, q.dropped)
	assert.Equal(t, []string{"high", "huge", "small"}, q.drain(at(-1000)))
	assert.Zero(t, q.Stats().Tokens)
	assert.Zero(t, q.Stats().Bytes)
}

// However much a tenant has had, if it claims nothing but the longest responses, another one that
// comes is next but one.
func TestVirtualTimeDoesNotOverflow(t *testing.T) {
	q := newQueue(t, queue.Config{OutputWeight: 1e6})
	huge := queue.Item[string]{Tenant: "a", Value: "huge", OutputTokens: math.MaxInt32}
	q.push(t, huge)
	for i := range 280_000 {
		if i%5000 == 4999 {
			q.push(t, queue.Item[string]{Tenant: "b", Value: "small"})
			var next []string
			for range 2 {
				item, _ := q.Pop(epoch, 0)
				next = append(next, item.Value)
			}
			require.Contains(t, next, "small", "after %d requests", i)
			q.push(t, huge)
			continue
		}
		_, _ = q.Pop(epoch, 0)
		_, _ = q.Push(epoch, huge)
	}
}

func TestQueueDefaults(t *testing.T) {
	q := newQueue(t, queue.Config{})
	_, err := q.Push(epoch, queue.Item[string]{Bytes: 1<<30 + 1})
	require.ErrorIs(t, err, queue.ErrTooLarge)
	q.push(t, queue.Item[string]{Bytes: 1 << 30, Tokens: math.MaxInt32})
	for range 999 {
		q.push(t, queue.Item[string]{Tokens: math.MaxInt32})
	}
	_, err = q.Push(epoch, queue.Item[string]{})
	require.ErrorIs(t, err, queue.ErrFull)
	assert.Zero(t, q.expire(epoch.Add(30*time.Second-1)))
	assert.Equal(t, 1000, q.expire(epoch.Add(30*time.Second)))
}

func TestNewItem(t *testing.T) {
	req := endpick.Request{Priority: 2, Tenant: "t", InputTokens: 7, SLO: endpick.SLO{TTFT: time.Second}}
	assert.Equal(t, queue.Item[int]{Priority: 2, Tenant: "t", Tokens: 7, Deadline: at(1000), Value: 5}, queue.NewItem(epoch, &req, 5))
	req.SLO = endpick.SLO{TPOT: time.Second}
	assert.True(t, queue.NewItem(epoch, &req, 5).Deadline.IsZero())
}

func TestAdmittersConform(t *testing.T) {
	for name, newAdmitter := range map[string]func() endpick.Admitter{
		"reject all":    queue.RejectAll,
		"by saturation": func() endpick.Admitter { return queue.RejectSheddable(nil) },
		"token bucket":  func() endpick.Admitter { return queue.TokenBucket(1<<21, 1000) },
	} {
		t.Run(name, func(t *testing.T) {
			scorertest.RunAdmitter(t, func(*testing.T) endpick.Admitter { return newAdmitter() })
		})
	}
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
