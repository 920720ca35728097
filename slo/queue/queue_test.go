package queue_test

import (
	"fmt"
	"math"
	"runtime"
	"strconv"
	"testing"
	"time"
	"weak"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/scorertest"
	"github.com/endpick/endpick/slo/queue"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
	q := rig.Must(queue.New(config, func(i queue.Item[string], err error) {
		var qe *queue.Error
		require.ErrorAs(t, err, &qe)
		h.dropped = append(h.dropped, fmt.Sprintf("%s: %v after %v", i.Value, qe.Reason, qe.Waited))
	}))
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

// pop pops a request, which must be there.
func (h *held) pop(t require.TestingT) queue.Item[string] {
	item, ok := h.Pop(epoch, 0)
	require.True(t, ok)
	return item
}

func (h *held) push(t require.TestingT, items ...queue.Item[string]) {
	for _, i := range items {
		require.NoError(t, rig.Err(h.Push(epoch, i)))
	}
}

// A request with a day's deadline does not get ahead of those without one, nor of those that are dropped sooner.
func TestNoDeadlineIsLaterThanTheEndOfTheWait(t *testing.T) {
	q := newQueue(t, queue.Config{})
	q.push(t, queue.Item[string]{Value: "none"}, queue.Item[string]{Value: "a day", Deadline: epoch.Add(24 * time.Hour)})
	q.push(t, queue.Item[string]{Value: "half a minute", Deadline: at(30_000)}, queue.Item[string]{Value: "hasty", Timeout: 20 * time.Second})
	q.push(t, queue.Item[string]{Value: "hasty too", Timeout: 20 * time.Second, Deadline: at(25_000)})
	assert.Equal(t, []string{"hasty", "hasty too", "none", "a day", "half a minute"}, q.drain(epoch))
}

func TestQueueForgetsTenants(t *testing.T) {
	q := newQueue(t, queue.Config{MaxRequests: 10})
	q.push(t, queue.Item[string]{Value: "always there", Priority: 0, Tenant: "always", Tokens: 1 << 30, Deadline: at(1 << 30)})
	for i := range 5000 {
		q.push(t, queue.Item[string]{Value: "x", Tenant: fmt.Sprint(i)})
		if q.pop(t).Value != "x" {
			require.Zero(t, i)
		}
	}
	assert.InDelta(t, 1050, queue.RememberedTenants(q.Queue), 50)

	q = newQueue(t, queue.Config{})
	q.push(t, queue.Item[string]{Value: "a", Tenant: "a"}, queue.Item[string]{Value: "z", Tenant: "z"})
	_, ok := q.Cancel(rig.Must(q.Push(epoch, queue.Item[string]{Value: "gone", Tenant: "gone"})))
	require.True(t, ok)
	assert.Equal(t, 2, queue.RememberedTenants(q.Queue), "one of whom nothing was dispatched")
	q.pop(t)
	assert.Equal(t, 2, queue.RememberedTenants(q.Queue), "one that is ahead of the others")
	q.pop(t)
	assert.Zero(t, queue.RememberedTenants(q.Queue), "nobody waits")
}

// Of too many tenants that are ahead, those furthest ahead are remembered.
func TestQueueForgetsTheLeastAhead(t *testing.T) {
	q := newQueue(t, queue.Config{MaxRequests: 10})
	q.push(t, queue.Item[string]{Value: "always there", Tenant: "always", Deadline: at(10_000)})
	serve := func(tenant string, tokens int) {
		q.push(t, queue.Item[string]{Value: "x", Tenant: tenant, Tokens: tokens, Deadline: at(1)})
		require.Equal(t, "x", q.pop(t).Value)
	}
	serve("far ahead", 1000)
	for i := range 3000 {
		serve(fmt.Sprint(i), 10)
	}
	q.push(t, queue.Item[string]{Value: "far ahead", Tenant: "far ahead", Deadline: at(1)}, queue.Item[string]{Value: "new", Tenant: "new"})
	assert.Equal(t, []string{"always there", "new", "far ahead"}, q.drain(epoch))
}

// A tenant that was passed over because its model had no room does not turn the time back when it goes: who comes
// then is not ahead of it.
func TestQueueTimeGoesOn(t *testing.T) {
	q := newQueue(t, queue.Config{})
	for _, tenant := range []string{"a", "a", "b", "b", "b"} {
		q.push(t, queue.Item[string]{Value: tenant, Tenant: tenant, Tokens: 50})
	}
	for range 2 {
		q.PopIf(epoch, 0, func(i queue.Item[string]) bool { return i.Value == "b" })
	}
	require.Equal(t, "a", q.pop(t).Value)
	q.push(t, queue.Item[string]{Value: "new", Tenant: "new"})
	assert.Equal(t, []string{"a", "new", "b"}, q.drain(epoch))
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
	assert.Equal(t, queue.Stats{Refused: 5}, q.Stats())
	drop := func(queue.Item[int], error) {}
	for _, c := range []queue.Config{{MaxRequests: -1}, {MaxTokens: -1}, {MaxBytes: -1}, {Timeout: -1}} {
		require.ErrorAs(t, rig.Err(queue.New(c, drop)), new(*endpick.ConfigError))
	}
	for _, w := range []float64{math.Nextafter(0, -1), math.Nextafter(1000, 2000), nan} {
		refused := &endpick.ConfigError{Field: "queue.Config.OutputWeight", Reason: fmt.Sprintf("is %v, not within 0 and 1000", w)}
		assert.Equal(t, refused, rig.Err(queue.New(queue.Config{OutputWeight: w}, drop)))
	}
	require.NoError(t, rig.Err(queue.New(queue.Config{OutputWeight: 1000}, drop)))
	require.ErrorAs(t, rig.Err(queue.New[int](queue.Config{}, nil)), new(*endpick.ConfigError))
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
		require.NoError(t, rig.Err(q.Push(epoch, queue.Item[string]{Value: v, Priority: -1})))
	}
	assert.PanicsWithValue(t, "boom", func() { _, _ = q.Push(epoch, queue.Item[string]{Value: "large", Tokens: 3}) })
	assert.Equal(t, []string{"c", "b"}, dropped)
	item, ok := q.Pop(epoch, 0)
	require.True(t, ok)
	assert.Equal(t, "large", item.Value)
	assert.Equal(t, []string{"c", "b", "a"}, dropped)
	assert.Equal(t, queue.Stats{Pushed: 4, Dispatched: 1, Shed: 3}, q.Stats())
}

// Sums of the largest sizes do not overflow, and a call that comes late makes
// no wait negative.
func TestQueueExtremes(t *testing.T) {
	needsWideInts(t)
	q := newQueue(t, queue.Config{MaxRequests: 3, MaxBytes: math.MaxInt64, Timeout: math.MaxInt64})
	huge := queue.Item[string]{Value: "huge", Tenant: "a", Tokens: math.MaxInt32, Bytes: wide(1 << 40)}
	q.push(t, huge, huge, queue.Item[string]{Value: "small", Tenant: "b"})
	assert.Equal(t, int64(2*math.MaxInt32+1), q.Stats().Tokens)
	assert.Equal(t, int64(2<<40), q.Stats().Bytes)
	require.NoError(t, rig.Err(q.Push(at(-1000), queue.Item[string]{Value: "high", Priority: math.MaxInt})))
	assert.Equal(t, []string{"huge: queue: shed to make room after 0s"}, q.dropped)
	assert.Equal(t, []string{"high", "huge", "small"}, q.drain(at(-1000)))
	assert.Zero(t, q.Stats().Tokens)
	assert.Zero(t, q.Stats().Bytes)
	q.push(t, queue.Item[string]{Value: "least", Priority: math.MinInt}, queue.Item[string]{Value: "most", Priority: math.MaxInt}, queue.Item[string]{Value: "normal"})
	assert.Equal(t, []string{"most", "normal", "least"}, q.drain(epoch))
}

func TestQueueDefaults(t *testing.T) {
	q := newQueue(t, queue.Config{})
	require.ErrorIs(t, rig.Err(q.Push(epoch, queue.Item[string]{Bytes: 1<<30 + 1})), queue.ErrTooLarge)
	q.push(t, queue.Item[string]{Bytes: 1 << 30, Tokens: math.MaxInt32})
	for range 999 {
		q.push(t, queue.Item[string]{Tokens: math.MaxInt32})
	}
	require.ErrorIs(t, rig.Err(q.Push(epoch, queue.Item[string]{})), queue.ErrFull)
	assert.Zero(t, q.expire(epoch.Add(30*time.Second-1)))
	assert.Equal(t, 1000, q.expire(epoch.Add(30*time.Second)))
}

func TestTheAdmitterConforms(t *testing.T) {
	scorertest.RunAdmitter(t, func(*testing.T) endpick.Admitter { return queue.RejectSheddable(nil) })
}

// A push that tries to make room and is refused in the end changes nobody's order.
func TestQueueRefusedPushChangesNoOrder(t *testing.T) {
	// Two tenants have been served 50 tokens each when one of them comes again.
	q := newQueue(t, queue.Config{MaxTokens: 300})
	for _, tenant := range []string{"a", "b", "a", "b"} {
		q.push(t, queue.Item[string]{Value: tenant, Tenant: tenant, Priority: -1, Tokens: 50, Deadline: at(1)})
	}
	for range 3 {
		q.pop(t)
	}
	q.push(t, queue.Item[string]{Value: "light", Tenant: "light"})
	require.ErrorIs(t, rig.Err(q.Push(epoch, queue.Item[string]{Value: "heavy", Tenant: "heavy", Tokens: 300})), queue.ErrFull)
	for range 2 {
		q.push(t, queue.Item[string]{Value: "c", Tenant: "c", Priority: -1})
	}
	assert.Equal(t, []string{"light", "b", "c", "c"}, q.drain(epoch))

	// One tenant waits for room of its own while another is served 100 tokens.
	q = newQueue(t, queue.Config{MaxTokens: 300})
	for _, tenant := range []string{"a", "b", "b", "b"} {
		q.push(t, queue.Item[string]{Value: tenant, Tenant: tenant, Priority: -1, Tokens: 50})
	}
	for range 2 {
		q.PopIf(epoch, 0, func(i queue.Item[string]) bool { return i.Value == "b" })
	}
	q.push(t, queue.Item[string]{Value: "c", Tenant: "c", Priority: -1, Deadline: at(1)}, queue.Item[string]{Value: "light", Tenant: "light"})
	require.ErrorIs(t, rig.Err(q.Push(epoch, queue.Item[string]{Value: "heavy", Tenant: "heavy", Tokens: 300})), queue.ErrFull)
	assert.Equal(t, []string{"light", "a", "c", "b"}, q.drain(epoch))

	// Each of many tenants has been served ten tokens.
	const many = 3000
	q = newQueue(t, queue.Config{MaxRequests: 2 * many, MaxTokens: 11 * many})
	for _, tokens := range []int{10, 1} {
		for i := range many {
			q.push(t, queue.Item[string]{Value: "had", Tenant: fmt.Sprint(i), Priority: -1, Tokens: tokens, Deadline: at(tokens)})
		}
	}
	for range many {
		q.pop(t)
	}
	q.push(t, queue.Item[string]{Value: "light", Tenant: "light"})
	require.ErrorIs(t, rig.Err(q.Push(epoch, queue.Item[string]{Value: "heavy", Tenant: "heavy", Tokens: 11 * many})), queue.ErrFull)
	q.push(t, queue.Item[string]{Value: "new", Tenant: "new", Priority: -1})
	assert.Equal(t, []string{"light", "new", "had"}, q.drain(epoch)[:3])
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
	assert.EqualError(t, dropped[0], "queue: shed to make room: priority -1, waited 200ms, 2 requests held")
	q.Pop(at(1000), 1)
	require.Len(t, dropped, 2)
	assert.Equal(t, &queue.Error{Reason: queue.ErrTimeout, Priority: 1, Waited: time.Second, Requests: 1}, dropped[1])
	assert.Equal(t, queue.Stats{Pushed: 3, Refused: 2, Shed: 1, TimedOut: 1, Requests: 1, Tokens: 5}, q.Stats())
}

// A request that has left, in whatever way, is released: its value may hold a whole body.
func TestQueueLetsGo(t *testing.T) {
	q := rig.Must(queue.New(queue.Config{MaxRequests: 3, Timeout: time.Second}, func(queue.Item[*[1024]byte], error) {}))
	left := map[string]weak.Pointer[[1024]byte]{}
	push := func(name string, ms, priority int) queue.Handle[*[1024]byte] {
		value := new([1024]byte)
		left[name] = weak.Make(value)
		h, err := q.Push(at(ms), queue.Item[*[1024]byte]{Value: value, Priority: priority})
		require.ErrorIs(t, err, map[string]error{"refused": queue.ErrFull}[name])
		return h
	}
	push("times out", 0, 0)
	push("shed", 500, 0)
	push("popped", 600, 7)
	canceled := push("canceled", 1100, 1)
	push("stays", 1100, 1)
	push("refused", 1100, -1)
	_, ok := q.Pop(at(1100), nan) // not known
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
			popped = append(popped, q.pop(t))
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
	popped := q.pop(t)
	require.Equal(t, "a", popped.Value)
	if do != nil {
		do(q.Queue, popped)
	}
	for n := range most {
		next := q.pop(t)
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
		assert.Equal(t, 200, price(t, queue.Config{OutputWeight: 1000}, queue.Item[string]{}, func(q *queue.Queue[string], i queue.Item[string]) {
			for range 1000 {
				q.Settle(i, took[0], took[1])
			}
		}))
	}
}

// A request's expected output travels with it and does not count towards the queue's
// limits.
func TestNewItem(t *testing.T) {
	req := endpick.Request{Priority: 2, Tenant: "t", InputTokens: 7, ExpectedOutputTokens: 9, SLO: endpick.SLO{TTFT: time.Second}}
	want := queue.Item[int]{Priority: 2, Tenant: "t", Tokens: 7, OutputTokens: 9, Deadline: at(1000), Value: 5}
	assert.Equal(t, want, queue.NewItem(epoch, &req, 5))
	req.SLO = endpick.SLO{TPOT: time.Second}
	assert.True(t, queue.NewItem(epoch, &req, 5).Deadline.IsZero())
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
