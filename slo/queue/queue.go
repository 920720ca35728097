package queue

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/btree"

	"github.com/endpick/endpick"
)

// Config bounds a [Queue]. The zero value holds 1000 requests for 30 seconds.
type Config struct {
	// MaxRequests is how many requests the queue holds. Zero: 1000.
	MaxRequests int
	// MaxTokens is how many input tokens they may have together. Zero: no
	// bound.
	MaxTokens int64
	// MaxBytes is how much memory they may hold together, as their Bytes say.
	// Zero: no bound.
	MaxBytes int64
	// Timeout is how long a request may wait if it does not say so itself.
	// Zero: 30 seconds.
	Timeout time.Duration
}

func (c *Config) validate() error {
	for _, f := range []struct {
		name     string
		negative bool
	}{
		{"MaxRequests", c.MaxRequests < 0}, {"MaxTokens", c.MaxTokens < 0},
		{"MaxBytes", c.MaxBytes < 0}, {"Timeout", c.Timeout < 0},
	} {
		if f.negative {
			return &endpick.ConfigError{Field: "queue.Config." + f.name, Reason: "is negative"}
		}
	}
	if c.MaxRequests == 0 {
		c.MaxRequests = 1000
	}
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	return nil
}

// Item is a request in a [Queue] and what it carries.
type Item[T any] struct {
	// Priority: higher goes first, below zero can be shed.
	Priority int
	// Tenant is whose turn the request takes.
	Tenant string
	// Deadline orders the requests of a tenant, the earliest first; those
	// without one come last. It is a wish: a request is not dropped for
	// missing it.
	Deadline time.Time
	// Tokens is the length of the prompt: what the request costs its tenant.
	// Zero, unknown: it costs one.
	Tokens int
	// Bytes is the memory that the request holds.
	Bytes int
	// Timeout is how long it may wait. Zero: Config.Timeout.
	Timeout time.Duration
	Value   T
}

// NewItem returns the item for a request that arrives now: its deadline is the
// TTFT target, where there is one.
func NewItem[T any](now time.Time, req *endpick.Request, value T) Item[T] {
	item := Item[T]{Priority: req.Priority, Tenant: req.Tenant, Tokens: max(req.InputTokens, 0), Value: value}
	if req.SLO.TTFT > 0 {
		item.Deadline = now.Add(req.SLO.TTFT)
	}
	return item
}

func (i *Item[T]) validate() error {
	switch {
	case i.Tokens < 0:
		return &endpick.RequestError{Field: "queue.Item.Tokens", Reason: "is negative"}
	case i.Bytes < 0:
		return &endpick.RequestError{Field: "queue.Item.Bytes", Reason: "is negative"}
	case i.Timeout < 0:
		return &endpick.RequestError{Field: "queue.Item.Timeout", Reason: "is negative"}
	}
	return nil
}

func (i *Item[T]) cost() int64 { return max(int64(i.Tokens), 1) }

// Why a request left the queue without being dispatched, or did not get in;
// for errors.Is.
var (
	// ErrFull: it did not get in.
	ErrFull = errors.New("queue: full")
	// ErrTooLarge: it is larger than the whole queue.
	ErrTooLarge = errors.New("queue: request is larger than the whole queue")
	// ErrTimeout: it waited as long as it may.
	ErrTimeout = errors.New("queue: timed out")
	// ErrShed: it made room for a request that comes before it.
	ErrShed = errors.New("queue: shed to make room")
)

// Error says why a request was dropped. It matches Reason.
type Error struct {
	Reason   error // ErrFull, ErrTooLarge, ErrTimeout or ErrShed
	Waited   time.Duration
	Priority int
	// Requests are those that the queue held.
	Requests int
}

func (e *Error) Error() string {
	return fmt.Sprintf("%v: priority %d, waited %v, %d requests held", e.Reason, e.Priority, e.Waited, e.Requests)
}

// Unwrap returns Reason.
func (e *Error) Unwrap() error { return e.Reason }

// Handle names a request in a queue. The zero Handle names none.
type Handle struct{ slot, generation uint32 }

// Stats counts what a queue has done. Pushed is the sum of Dispatched,
// TimedOut, Shed, Canceled and the requests that it holds.
type Stats struct {
	Pushed, Dispatched, TimedOut, Shed, Canceled uint64
	Refused                                      uint64 // did not get in
}

// Queue is the gateway queue: it holds requests while the endpoints are full,
// so that they are routed late, on fresh state, and in order of importance
// (BLIS, "Gateway Queue"). It is a state machine: time and saturation
// are arguments, it starts no goroutine and is not safe for concurrent use.
//
// Order: the highest priority first. Within a priority tenants take turns, the
// one that has had the fewest input tokens first: a tenant with much to do
// does not hold up the others, and no tenant gets ahead by claiming tighter
// deadlines. Among a tenant's requests, and among tenants that are level, the
// earliest deadline goes first, then the first to come. With one tenant that is
// earliest deadline first within each priority.
//
// A request that does not fit displaces those that matter less: of the lowest
// priority, which sheds the sheddable first; within it of the tenant that holds
// the most tokens, its latest deadline. If that is the new request itself, it
// does not get in and nobody else is dropped.
//
// Every request that got in leaves exactly once: by Pop, by Cancel, or through
// the function given to [New].
type Queue[T any] struct {
	config Config
	drop   func(Item[T], error)

	slots []*entry[T]
	free  []uint32
	bands *btree.BTreeG[*band[T]] // highest priority first
	times *btree.BTreeG[*entry[T]]
	nodes *btree.FreeListG[*entry[T]]

	sequence      uint64
	tokens, bytes int64
	stats         Stats
	victims       []*entry[T]
}

// entry is the place of one request; places are used again.
type entry[T any] struct {
	item       Item[T]
	slot       uint32
	generation uint32
	queued     bool
	sequence   uint64 // order of arrival
	arrived    time.Time
	expires    time.Time
	band       *band[T]
	tenant     *tenant[T]
}

func (e *entry[T]) handle() Handle { return Handle{slot: e.slot, generation: e.generation} }

// earlier orders the requests of a tenant.
func earlier[T any](a, b *entry[T]) bool {
	x, y := a.item.Deadline, b.item.Deadline
	switch {
	case x.Equal(y) || x.IsZero() && y.IsZero():
		return a.sequence < b.sequence
	case x.IsZero():
		return false
	case y.IsZero():
		return true
	}
	return x.Before(y)
}

func expiresFirst[T any](a, b *entry[T]) bool {
	if !a.expires.Equal(b.expires) {
		return a.expires.Before(b.expires)
	}
	return a.sequence < b.sequence
}

const treeDegree = 16

// New returns an empty queue, or an [endpick.ConfigError]. The function is called
// for each request that is dropped, with a [Error]; it must not call the
// queue.
func New[T any](config Config, dropped func(Item[T], error)) (*Queue[T], error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	if dropped == nil {
		return nil, &endpick.ConfigError{Field: "queue.New: dropped", Reason: "is nil: requests would be lost"}
	}
	return &Queue[T]{
		config: config,
		drop:   dropped,
		bands:  btree.NewG(treeDegree, func(a, b *band[T]) bool { return a.priority > b.priority }),
		times:  btree.NewG(treeDegree, expiresFirst[T]),
		nodes:  btree.NewFreeListG[*entry[T]](btree.DefaultFreeListSize),
	}, nil
}

// Len is the number of requests in the queue.
func (q *Queue[T]) Len() int { return q.times.Len() }

// Tokens are the input tokens of the requests in the queue, at least one each.
func (q *Queue[T]) Tokens() int64 { return q.tokens }

// Bytes is the memory that the requests in the queue hold.
func (q *Queue[T]) Bytes() int64 { return q.bytes }

// Stats returns the queue's counts.
func (q *Queue[T]) Stats() Stats { return q.stats }

// Push puts a request into the queue. If there is no room it drops others, as
// the Queue's comment says, or returns a [Error]; an [endpick.RequestError] if a
// field is negative.
func (q *Queue[T]) Push(now time.Time, item Item[T]) (Handle, error) {
	q.Expire(now)
	if err := item.validate(); err != nil {
		q.stats.Refused++
		return Handle{}, err
	}
	if q.over(0, item.cost(), int64(item.Bytes)) {
		q.stats.Refused++
		return Handle{}, &Error{Reason: ErrTooLarge, Priority: item.Priority, Requests: q.Len()}
	}
	e := q.take()
	timeout := item.Timeout
	if timeout == 0 {
		timeout = q.config.Timeout
	}
	e.item, e.arrived, e.expires, e.sequence = item, now, now.Add(timeout), q.sequence
	q.sequence++
	q.insert(e)
	if !q.makeRoom(now, e) {
		q.stats.Refused++
		q.put(e)
		return Handle{}, &Error{Reason: ErrFull, Priority: item.Priority, Requests: q.Len()}
	}
	q.stats.Pushed++
	return e.handle(), nil
}

func (q *Queue[T]) over(requests int, tokens, bytes int64) bool {
	c := &q.config
	return requests > c.MaxRequests || c.MaxTokens > 0 && tokens > c.MaxTokens || c.MaxBytes > 0 && bytes > c.MaxBytes
}

// makeRoom drops requests until the queue is within its bounds. If that would
// cost the newcomer its place, it takes the newcomer out alone and returns
// false.
func (q *Queue[T]) makeRoom(now time.Time, newcomer *entry[T]) bool {
	q.victims = q.victims[:0]
	fits := true
	for q.over(q.Len(), q.tokens, q.bytes) {
		v := q.worst()
		q.detach(v)
		if v == newcomer {
			fits = false
			break
		}
		q.victims = append(q.victims, v)
	}
	if !fits {
		for _, v := range q.victims {
			q.insert(v)
		}
		q.tidy(newcomer.band)
		return false
	}
	for _, v := range q.victims {
		q.stats.Shed++
		q.leave(v, now, ErrShed)
	}
	return true
}

// Pop takes out the next request if the endpoints have room: the saturation,
// measured at this moment, is below 1. It returns false if they have not, or
// nobody waits.
func (q *Queue[T]) Pop(now time.Time, saturation float64) (Item[T], bool) {
	q.Expire(now)
	b, ok := q.bands.Min()
	if !ok || !(saturation < 1) {
		return Item[T]{}, false
	}
	e := b.next()
	q.stats.Dispatched++
	return q.release(e), true
}

// Cancel takes out the request of the handle; false if it has left already.
func (q *Queue[T]) Cancel(h Handle) (Item[T], bool) {
	if int(h.slot) >= len(q.slots) {
		return Item[T]{}, false
	}
	e := q.slots[h.slot]
	if !e.queued || e.generation != h.generation {
		return Item[T]{}, false
	}
	q.stats.Canceled++
	return q.release(e), true
}

// Expire drops the requests whose time is up and returns how many there were.
// Push and Pop do so too.
func (q *Queue[T]) Expire(now time.Time) int {
	for n := 0; ; n++ {
		e, ok := q.times.Min()
		if !ok || e.expires.After(now) {
			return n
		}
		q.detach(e)
		q.stats.TimedOut++
		q.leave(e, now, ErrTimeout)
	}
}

// NextExpiry is when Expire will next have something to do; false if the
// queue is empty.
func (q *Queue[T]) NextExpiry() (time.Time, bool) {
	e, ok := q.times.Min()
	if !ok {
		return time.Time{}, false
	}
	return e.expires, true
}

// leave reports a request that was detached, and frees its place.
func (q *Queue[T]) leave(e *entry[T], now time.Time, reason error) {
	err := &Error{Reason: reason, Waited: now.Sub(e.arrived), Priority: e.item.Priority, Requests: q.Len()}
	item := e.item
	q.tidy(e.band)
	q.put(e)
	q.drop(item, err)
}

func (q *Queue[T]) release(e *entry[T]) Item[T] {
	item := e.item
	q.detach(e)
	q.tidy(e.band)
	q.put(e)
	return item
}

// take returns a free place, with a generation that no handle has.
func (q *Queue[T]) take() *entry[T] {
	if n := len(q.free); n > 0 {
		e := q.slots[q.free[n-1]]
		q.free = q.free[:n-1]
		e.generation++
		return e
	}
	e := &entry[T]{slot: uint32(len(q.slots)), generation: 1}
	q.slots = append(q.slots, e)
	return e
}

// put frees a place and drops what its holder owned.
func (q *Queue[T]) put(e *entry[T]) {
	e.item, e.band, e.tenant = Item[T]{}, nil, nil
	q.free = append(q.free, e.slot)
}
