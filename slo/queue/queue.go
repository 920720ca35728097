package queue

import (
	"cmp"
	"time"

	"github.com/endpick/endpick/internal/check"
	"github.com/google/btree"
)

// Config bounds a [Queue]. The zero value holds 1000 requests for 30 seconds.
type Config struct {
	// MaxRequests is how many requests the queue holds. Zero: 1000.
	MaxRequests int
	// MaxTokens is how many input tokens they may have together. Zero: no
	// limit.
	MaxTokens int64
	// MaxBytes is how much memory they may hold together, as the sum of their
	// Bytes. Zero: 1 GiB.
	MaxBytes int64
	// Timeout is how long a request may wait if it has no Timeout of its own.
	// Zero: 30 seconds.
	Timeout time.Duration
	// OutputWeight is what a generated token costs a tenant, in tokens of prompt.
	// Zero: 2, as in VTC (Sheng et al., Fairness in Serving Large Language Models,
	// 2024).
	OutputWeight float64
}

func (c *Config) validate() error {
	if !(c.OutputWeight >= 0 && c.OutputWeight <= 1000) {
		return check.Bad("queue.Config.OutputWeight", "is %v, not within 0 and 1000", c.OutputWeight)
	}
	c.OutputWeight = cmp.Or(c.OutputWeight, 2)
	return cmp.Or(
		check.Default("queue.Config.MaxRequests", &c.MaxRequests, 1000),
		check.Default("queue.Config.MaxTokens", &c.MaxTokens, 0),
		check.Default("queue.Config.MaxBytes", &c.MaxBytes, 1<<30),
		check.Default("queue.Config.Timeout", &c.Timeout, 30*time.Second),
	)
}

// bounds are the limits of the queue; zero: none.
func (c *Config) bounds() amounts {
	return amounts{requests: int64(c.MaxRequests), tokens: c.MaxTokens, bytes: c.MaxBytes}
}

// Handle names a request in a queue. The zero Handle names none.
type Handle[T any] struct{ entry *entry[T] }

// Stats counts what a queue has done and what it holds. Pushed is the sum of
// Dispatched, TimedOut, Shed, Canceled and Requests.
type Stats struct {
	Pushed, Dispatched, TimedOut, Shed, Canceled uint64
	Refused                                      uint64 // not accepted

	Requests int   // held
	Tokens   int64 // of their prompts, at least one each
	Bytes    int64 // memory that they hold
}

// Queue is the gateway queue: it holds requests while the endpoints are full,
// so that they are routed late, based on fresh state, and in order of
// importance (BLIS, "Gateway Queue"). It is a state machine: time and
// saturation are arguments, it starts no goroutine, and it is not safe for
// concurrent use. The time must not go back; [endpick.Router.Now] does not.
//
// Order: the highest priority goes first. Within a priority, tenants take turns, starting
// with the one that has had the fewest tokens (output tokens are weighted). So a tenant
// with many requests does not hold up the others, and none gets ahead by claiming tighter
// deadlines or shorter responses than it gets. Among a tenant's requests, and among
// tenants that have had equally much, the earliest deadline goes first, then the first to
// come. With one tenant, that is earliest deadline first within each priority.
//
// A request that does not fit displaces less important ones. The lowest
// priority goes first; within a priority, the tenant that holds the most of
// whatever is scarce (requests, tokens or bytes) loses the request with its
// latest deadline. If that would be the new request itself, it is refused and
// no other is dropped.
//
// Every request that was accepted leaves exactly once: by [Queue.Pop] or PopIf, by
// [Queue.Cancel], or through the function given to [New].
//
// Each request that comes or goes costs time logarithmic in the length of the
// queue; a Push that is refused pays for each that would have had to go.
type Queue[T any] struct {
	config Config
	drop   func(Item[T], error)

	bands *btree.BTreeG[*band[T]] // those with requests, highest priority first
	times *btree.BTreeG[*entry[T]]

	sequence uint64
	epochs   uint64 // number of bands so far
	held     amounts
	stats    Stats
	dropped  []drop[T] // to be reported
}

// entry is one request.
type entry[T any] struct {
	item     Item[T]
	queued   bool
	sequence uint64 // order of arrival
	arrived  time.Time
	expires  time.Time
	due      time.Time // by which the tenant's requests are ordered
	band     *band[T]
	tenant   *tenant[T]
}

type drop[T any] struct {
	item Item[T]
	err  error
}

// earlier orders the requests of a tenant.
func earlier[T any](a, b *entry[T]) bool {
	return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.sequence, b.sequence)) < 0
}

func expiresFirst[T any](a, b *entry[T]) bool {
	return cmp.Or(a.expires.Compare(b.expires), cmp.Compare(a.sequence, b.sequence)) < 0
}

const treeDegree = 16

// New returns an empty queue, or an [endpick.ConfigError]. The function is
// called for each request that is dropped, with an [Error]; it must not call
// the queue. If it panics, the caller of the queue's method gets the panic, and
// the function is called for the other dropped requests in the next call.
func New[T any](config Config, dropped func(Item[T], error)) (*Queue[T], error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	if dropped == nil {
		return nil, check.Bad("queue.New: dropped", "is nil: requests would be lost")
	}
	return &Queue[T]{
		config: config,
		drop:   dropped,
		bands:  btree.NewG(treeDegree, func(a, b *band[T]) bool { return a.priority > b.priority }),
		times:  btree.NewG(treeDegree, expiresFirst[T]),
	}, nil
}

// Stats returns the queue's counts.
func (q *Queue[T]) Stats() Stats {
	s := q.stats
	s.Requests, s.Tokens, s.Bytes = q.times.Len(), q.held[tokens], q.held[bytes]
	return s
}

// Push puts a request into the queue. If there is no room it drops others, as
// the Queue's comment says, or returns an [Error]; or an [endpick.RequestError]
// if a field is out of range.
func (q *Queue[T]) Push(now time.Time, item Item[T]) (Handle[T], error) {
	q.expire(now)
	if err := item.validate(); err != nil {
		q.stats.Refused++
		return Handle[T]{}, err
	}
	if _, never := q.over(item.amounts()); never {
		q.stats.Refused++
		return Handle[T]{}, &Error{Reason: ErrTooLarge, Priority: item.Priority, Requests: q.times.Len()}
	}
	e := &entry[T]{
		item: item, arrived: now, expires: now.Add(cmp.Or(item.Timeout, q.config.Timeout)), sequence: q.sequence,
		band: q.bandOf(item.Priority),
	}
	e.due = e.expires
	if d := item.Deadline; !d.IsZero() && d.Before(e.due) {
		e.due = d
	}
	q.sequence++
	q.insert(e)
	if !q.makeRoom(now, e) {
		q.stats.Refused++
		return Handle[T]{}, &Error{Reason: ErrFull, Priority: item.Priority, Requests: q.times.Len()}
	}
	q.stats.Pushed++
	q.report()
	return Handle[T]{e}, nil
}

// over returns the first bound that the amounts exceed; false if there is none.
func (q *Queue[T]) over(held amounts) (bound, bool) {
	for b, most := range q.config.bounds() {
		if most > 0 && held[b] > most {
			return bound(b), true
		}
	}
	return 0, false
}

// makeRoom drops requests until the queue is within its bounds. If the newcomer
// would be among them, it removes the newcomer alone and returns false. Until
// that is known, nothing is dropped for good.
func (q *Queue[T]) makeRoom(now time.Time, newcomer *entry[T]) bool {
	var victims []*entry[T]
	for {
		short, over := q.over(q.held)
		if !over {
			break
		}
		lowest, _ := q.bands.Max()
		v := lowest.worst(short)
		q.detach(v)
		if v == newcomer {
			for _, v := range victims {
				q.insert(v)
			}
			newcomer.forget()
			return false
		}
		victims = append(victims, v)
	}
	for _, v := range victims {
		q.stats.Shed++
		q.leave(v, now, ErrShed)
	}
	return true
}

// Pop takes out the next request if the endpoints have room: the saturation,
// measured at this moment, is below 1, or NaN: not known. It returns false if they
// have not, or nobody waits.
func (q *Queue[T]) Pop(now time.Time, saturation float64) (Item[T], bool) {
	return q.PopIf(now, saturation, func(Item[T]) bool { return true })
}

// PopIf is Pop for the first request, in order, for which room returns true, such as one for a model
// that has a free server. The others stay where they are. room must not call the queue.
func (q *Queue[T]) PopIf(now time.Time, saturation float64, room func(Item[T]) bool) (Item[T], bool) {
	q.expire(now)
	if saturation >= 1 {
		return Item[T]{}, false
	}
	var next *entry[T]
	q.bands.Ascend(func(b *band[T]) bool {
		b.waiting.Ascend(func(t *tenant[T]) bool {
			t.requests.Ascend(func(e *entry[T]) bool {
				if room(e.item) {
					next = e
				}
				return next == nil
			})
			return next == nil
		})
		return next == nil
	})
	if next == nil {
		return Item[T]{}, false
	}
	next.band.dispatch(next, &q.config)
	q.stats.Dispatched++
	return q.release(next), true
}

// Settle says what a popped request really took, once it has ended: its prompt
// and output tokens, or zero for both if it was not served. Its tenant is charged
// for these instead of what was expected. Without a call the expectation stands.
//
// Like all usage of a tenant, it counts as long as any request of its priority
// waits.
func (q *Queue[T]) Settle(item Item[T], input, output int) {
	b, ok := q.bands.Get(&band[T]{priority: item.Priority})
	ok = ok && b.epoch == item.epoch
	if more := q.config.cost(input, output) - costOf(&q.config, &item); ok && more != 0 {
		b.charge(item.Tenant, more)
	}
}

// Cancel takes out the request of the handle; false if it has left already.
func (q *Queue[T]) Cancel(h Handle[T]) (Item[T], bool) {
	if h.entry == nil || !h.entry.queued {
		return Item[T]{}, false
	}
	q.stats.Canceled++
	return q.release(h.entry), true
}

// expire drops the requests whose time is up.
func (q *Queue[T]) expire(now time.Time) {
	for {
		e, ok := q.times.Min()
		if !ok || e.expires.After(now) {
			break
		}
		q.detach(e)
		q.stats.TimedOut++
		q.leave(e, now, ErrTimeout)
	}
	q.report()
}

// NextExpiry is when the next request times out, if no Push or Pop comes before:
// each drops the requests whose time is up. False: the queue is empty.
func (q *Queue[T]) NextExpiry() (time.Time, bool) {
	e, ok := q.times.Min()
	if !ok {
		return time.Time{}, false
	}
	return e.expires, true
}

func (q *Queue[T]) insert(e *entry[T]) {
	if e.band.waiting.Len() == 0 {
		q.bands.ReplaceOrInsert(e.band)
	}
	e.queued = true
	e.band.insert(e)
	q.times.ReplaceOrInsert(e)
	q.held.add(e.item.amounts(), 1)
}

// detach takes an entry out again. If its band is empty now, that is no longer part of the
// queue, but still the entry's.
func (q *Queue[T]) detach(e *entry[T]) {
	e.queued = false
	e.band.detach(e)
	if e.band.waiting.Len() == 0 {
		q.bands.Delete(e.band)
	}
	q.times.Delete(e)
	q.held.add(e.item.amounts(), -1)
}

// leave lets go of a detached request, to be reported.
func (q *Queue[T]) leave(e *entry[T], now time.Time, reason error) {
	q.dropped = append(q.dropped, drop[T]{e.item, &Error{
		Reason: reason, Waited: max(now.Sub(e.arrived), 0), Priority: e.item.Priority, Requests: q.times.Len(),
	}})
	e.forget()
}

// report passes on what was dropped, when the queue is consistent again.
func (q *Queue[T]) report() {
	for len(q.dropped) > 0 {
		d := q.dropped[0]
		q.dropped[0] = drop[T]{}
		q.dropped = q.dropped[1:]
		q.drop(d.item, d.err)
	}
}

func (q *Queue[T]) release(e *entry[T]) Item[T] {
	item := e.item
	q.detach(e)
	e.forget()
	return item
}

// forget drops what a request held that has left for good: its handle may be kept.
func (e *entry[T]) forget() {
	e.band.forget()
	e.item, e.band, e.tenant = Item[T]{}, nil, nil
}
