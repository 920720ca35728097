package transport

import (
	"cmp"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/queue"
)

// recheck is how often the endpoints are checked while requests wait. The end
// of a request is noticed at once; other changes, such as a report, the end of
// a prefill or a new endpoint, within this time.
const recheck = 10 * time.Millisecond

// Of every yieldEvery, yieldFor is left to other gateways that share the endpoints and their limits.
const yieldFor, yieldEvery = 2 * recheck, 24 * recheck

// QueueConfig configures a gateway queue in front of the router (BLIS, "Gateway
// Queue"; see queue.Queue for the order), which holds requests while the
// endpoints are full, so that each is routed when there is room for it, based
// on what is known then. The zero value is the paper's queue with the default
// bounds.
//
// Each request waits at most once, unless all endpoints that it could go to have as many as their
// MaxInFlight: for room there it waits, in the same order, also before a retry and without a
// QueueConfig, and others that have room pass it. Whether the fleet is
// full depends on all endpoints that are healthy and not drained, whichever
// model they serve; give models that do not share endpoints a transport each.
// If there are no endpoints, nothing is held, so that the client gets an error
// at once.
//
// The wait is subtracted from the TTFT target of a request before it is
// routed; a target that has passed still counts, and is out of reach.
type QueueConfig struct {
	// Bounds are the limits of the queue, including its timeout. The Bytes of
	// a request are its body and its blocks.
	Bounds queue.Config
	// Saturation says when the endpoints are full. Nil: queue.Utilization(0, 0),
	// which uses what each endpoint reports, or for one that reports nothing the
	// requests in flight relative to MaxSequences. It must not call the transport.
	// If it panics, the endpoints count as not full, and Config.Warn is called.
	Saturation queue.Saturation
}

// QueueStatus is the gateway queue at one moment.
type QueueStatus struct {
	queue.Stats
	// Saturation is how full the endpoints are: 1 and above is full.
	Saturation float64
}

// Queue returns the state of the gateway queue; false if there is none and no request has waited.
func (t *Transport) Queue() (QueueStatus, bool) {
	q := t.queue
	q.mu.Lock()
	defer q.unlock()
	s := QueueStatus{Stats: q.queue.Stats(), Saturation: q.saturation()}
	return s, q.full != nil || s.Pushed > 0
}

// gatewayQueue drives the gateway queue in real time. It has no goroutine: arriving
// requests advance the queue, and so does a timer, which only runs while
// requests wait.
type gatewayQueue struct {
	t       *Transport
	full    queue.Saturation // nil: requests wait for MaxInFlight alone
	waiting atomic.Int32     // requests in the queue

	mu     sync.Mutex // guards the fields below; held while a request is routed
	queue  *queue.Queue[*queued]
	timer  *time.Timer
	yields time.Time // until then room is left to other gateways
	view   []endpick.Candidate
	out    []string
	// tried has the models and names for which a moment ago there was no room for prompts longer than so many tokens.
	tried map[string]int
	// broken is a panic of full, to be reported without the lock.
	broken *endpick.PanicError
}

// queued is a request in the queue. It leaves with a lease, an error, or a panic of
// Route, such as after a stage has overwritten what it must not: the panic belongs to
// this request, whoever routes it.
type queued struct {
	c        *Call
	since    time.Time
	target   time.Duration       // for TTFT, when it came
	item     queue.Item[*queued] // as it left
	lease    endpick.Lease
	err      error
	panicked any
	routed   time.Time     // zero: not yet
	left     chan struct{} // closed when it has left
}

// route gives the request its lease or its error, and reports whether that is the end of its wait.
func (w *queued) route(now time.Time) (leaves bool) {
	leaves = true
	defer func() { w.panicked = recover() }()
	if w.target > 0 {
		w.c.Request.SLO.TTFT = max(w.target-now.Sub(w.since), 1)
	}
	w.lease, w.err = w.c.choose(w.c.in.Context())
	if waits(w.err) {
		return false
	}
	w.routed = now
	return true
}

func newGatewayQueue(t *Transport, of *QueueConfig) (*gatewayQueue, error) {
	q := &gatewayQueue{t: t, tried: map[string]int{}}
	var config QueueConfig
	if of != nil {
		config, q.full = *of, cmp.Or(of.Saturation, queue.Utilization(0, 0))
	}
	var err error
	q.queue, err = queue.New(config.Bounds, func(item queue.Item[*queued], why error) {
		item.Value.err = why
		close(item.Value.left)
	})
	q.timer = time.AfterFunc(math.MaxInt64, func() {
		q.mu.Lock()
		defer q.unlock()
		q.dispatch()
	})
	q.timer.Stop()
	return q, err
}

// lease routes the request, when there is room for it and nobody waits who comes before. The error
// is that of [endpick.Router.Route], a [queue.Error] or that of the request's context.
func (q *gatewayQueue) lease(c *Call) (endpick.Lease, error) {
	if again := c.latest != nil; again || q.full == nil && q.waiting.Load() == 0 {
		lease, err := c.choose(c.in.Context())
		if !waits(err) {
			return lease, err
		}
	}
	return q.wait(c)
}

// wait waits until there is room for the request, and routes it.
func (q *gatewayQueue) wait(c *Call) (endpick.Lease, error) {
	ctx := c.in.Context()
	if err := c.readAll(ctx); err != nil {
		return endpick.Lease{}, err
	}
	w := &queued{c: c, since: q.t.d.now(), target: c.Request.SLO.TTFT, left: make(chan struct{})}
	defer func() {
		if w.routed.IsZero() {
			w.routed = q.t.d.now()
		}
		c.story.held += w.routed.Sub(w.since)
	}()
	item := queue.NewItem(w.since, &c.Request, w)
	item.Bytes = c.memory()
	if len(c.sleeping(q.t.d.health.Out(q.t.d.asleep(w.since)))) > 0 {
		item.Timeout = max(q.t.config.LoadTimeout-w.since.Sub(c.story.start), 1) // it may have tried in vain
	}
	if c.latest != nil {
		item.Deadline = c.story.start // it has had its turn before
		c.repay()
	}

	q.mu.Lock()
	handle, err := q.queue.Push(w.since, item)
	if err == nil {
		q.dispatch()
	}
	q.unlock()
	if err != nil {
		return endpick.Lease{}, err
	}
	select {
	case <-w.left:
	case <-ctx.Done():
		q.mu.Lock()
		_, waited := q.queue.Cancel(handle)
		q.unlock()
		if waited {
			return endpick.Lease{}, ctx.Err()
		}
		<-w.left // it is being routed; the attempt will fail and close the lease
	}
	if w.panicked != nil {
		panic(w.panicked)
	}
	return w.lease, w.err
}

// repay gives the tenant back what the request was expected to cost, before it is charged again.
func (c *Call) repay() {
	c.mu.Lock()
	defer c.unlock()
	if w := c.charged; w != nil {
		c.charged = nil
		c.t.queue.settle(w.item, 0, 0)
	}
}

// ended is called when a request has ended: there may be room for those that wait, who are routed by
// the timer, not by the caller. Other gateways hear later of room under a limit, and would never find
// any without a time of their own.
func (q *gatewayQueue) ended(limited bool) {
	if q.waiting.Load() == 0 {
		return // who comes now tries first
	}
	q.mu.Lock()
	defer q.unlock()
	if now := q.t.d.now(); limited && now.Sub(q.yields) > yieldEvery-yieldFor && q.t.d.health.Shared() {
		q.yields = now.Add(yieldFor)
	}
	if q.queue.Stats().Requests > 0 {
		q.timer.Reset(0)
	}
}

// settle replaces the expected cost of a request by its tokens.
func (q *gatewayQueue) settle(item queue.Item[*queued], input, output int) {
	q.mu.Lock()
	defer q.unlock()
	q.queue.Settle(item, input, output)
}

// dispatch routes requests while the endpoints have room. Each is in flight
// before the next one is considered. q.mu is held.
func (q *gatewayQueue) dispatch() {
	clear(q.tried)
	for q.queue.Stats().Requests > 0 && !q.t.d.now().Before(q.yields) {
		now := q.t.d.now()
		item, ok := q.queue.PopIf(now, q.saturation(), func(item queue.Item[*queued]) bool { return q.leaves(item.Value, now) })
		if !ok {
			break
		}
		w := item.Value
		if w.lease != (endpick.Lease{}) {
			w.item, w.c.charged = item, w
		} else {
			q.queue.Settle(item, 0, 0) // before the next one is taken
		}
		close(w.left)
	}
	next, ok := q.queue.NextExpiry()
	if !ok {
		q.timer.Stop()
		return
	}
	q.timer.Reset(min(recheck, max(next.Sub(q.t.d.now()), 0)))
}

// leaves routes a request, unless there is no room for it. A prompt for the same model that can go only
// where one has just been tried in vain is not tried; clients choose how long their prompts are.
func (q *gatewayQueue) leaves(w *queued, now time.Time) bool {
	c := w.c
	name, alike := cmp.Or(c.story.named, c.model()), len(c.exclude) == 0
	if n, ok := q.tried[name]; ok && alike && c.Request.InputTokens > n {
		return false
	}
	if w.route(now) {
		return true
	}
	if alike {
		q.tried[name] = q.shorter(c.Request.InputTokens)
	}
	return false
}

// shorter is the longest prompt that may fit more endpoints than one of n tokens does; see [endpick.ContextError].
func (q *gatewayQueue) shorter(n int) (longest int) {
	q.view = q.t.config.Router.AppendCandidates(q.view[:0])
	for i := range q.view {
		most := q.view[i].Endpoint.MaxContext
		for _, fits := range [...]int{most, most + most/4} {
			if fits < n {
				longest = max(longest, fits)
			}
		}
	}
	return longest
}

// saturation is the saturation of the endpoints that can take requests; q.mu is
// held.
func (q *gatewayQueue) saturation() (full float64) {
	if q.full == nil {
		return 0
	}
	defer func() {
		if v := recover(); v != nil {
			q.broken = &endpick.PanicError{Stage: "transport.QueueConfig.Saturation", Value: v, Stack: debug.Stack()}
		}
	}()
	q.view = q.t.config.Router.AppendCandidates(q.view[:0])
	if len(q.view) == 0 {
		return 0 // nothing to wait for
	}
	q.out = q.t.d.health.Out(q.out[:0])
	slices.Sort(q.out)
	well := endpick.Keep(q.view, func(c *endpick.Candidate) bool {
		_, out := slices.BinarySearch(q.out, c.Endpoint.ID)
		return !out
	})
	if len(well) == 0 {
		well = q.view // they are tried anyway
	}
	return q.full.Saturation(well)
}

// unlock releases q.mu, and reports problems.
func (q *gatewayQueue) unlock() {
	broken := q.broken
	q.broken = nil
	q.waiting.Store(int32(q.queue.Stats().Requests))
	q.mu.Unlock()
	if broken != nil {
		q.t.d.panics.Add(1)
		q.t.d.warn(nil, broken)
	}
}
