package transport

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/queue"
)

// recheck is how often the endpoints are checked while requests wait. The end
// of a request is noticed at once; other changes, such as a report, the end of
// a prefill or a new endpoint, within this time.
const recheck = 10 * time.Millisecond

// QueueConfig configures a gateway queue in front of the router (BLIS, "Gateway
// Queue"; see queue.Queue for the order), which holds requests while the
// endpoints are full, so that each is routed when there is room for it, based
// on what is known then. The zero value is the paper's queue with the default
// bounds.
//
// Each request waits at most once: retries do not wait. Whether the fleet is
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

// Queue returns the state of the gateway queue; false if there is none.
func (t *Transport) Queue() (QueueStatus, bool) {
	q := t.queue
	if q == nil {
		return QueueStatus{}, false
	}
	q.mu.Lock()
	defer q.unlock()
	return QueueStatus{Stats: q.queue.Stats(), Saturation: q.saturation()}, true
}

// gatewayQueue drives the gateway queue in real time. It has no goroutine: arriving
// requests advance the queue, and so does a timer, which only runs while
// requests wait.
type gatewayQueue struct {
	t    *Transport
	full queue.Saturation

	mu    sync.Mutex // guards the fields below; held while a request is routed
	queue *queue.Queue[*queued]
	timer *time.Timer
	view  []endpick.Candidate
	out   []string
	// broken is a panic of full, to be reported without the lock.
	broken *endpick.PanicError
}

// queued is a request in the queue. It leaves with a lease, an error, or a panic of
// Route, such as after a stage has overwritten what it must not: the panic belongs to
// this request, whoever routes it.
type queued struct {
	c        *Call
	since    time.Time
	item     queue.Item[*queued] // as it left
	lease    endpick.Lease
	err      error
	panicked any
	left     chan struct{} // closed when it has left
}

// route gives the request its lease or its error.
func (w *queued) route(now time.Time) {
	defer func() { w.panicked = recover() }()
	if target := &w.c.Request.SLO.TTFT; *target > 0 {
		*target = max(*target-now.Sub(w.since), 1)
	}
	w.lease, w.err = w.c.choose()
}

func newGatewayQueue(t *Transport, config QueueConfig) (*gatewayQueue, error) {
	q := &gatewayQueue{t: t, full: config.Saturation}
	if q.full == nil {
		q.full = queue.Utilization(0, 0)
	}
	var err error
	q.queue, err = queue.New(config.Bounds, func(item queue.Item[*queued], why error) {
		item.Value.err = why
		close(item.Value.left)
	})
	q.timer = time.AfterFunc(math.MaxInt64, q.advance)
	q.timer.Stop()
	return q, err
}

// route waits until there is room for the request, and routes it. The error is that of
// [endpick.Router.Route], a [queue.Error] or that of the request's context.
func (q *gatewayQueue) route(c *Call) (endpick.Lease, error) {
	ctx := c.in.Context()
	w := &queued{c: c, since: q.t.d.now(), left: make(chan struct{})}
	item := queue.NewItem(w.since, &c.Request, w)
	item.Bytes = c.memory()

	handle, err := q.push(item)
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

func (q *gatewayQueue) push(item queue.Item[*queued]) (queue.Handle, error) {
	q.mu.Lock()
	defer q.unlock()
	handle, err := q.queue.Push(item.Value.since, item)
	if err == nil {
		q.dispatch()
	}
	return handle, err
}

// advance dispatches requests while there is room.
func (q *gatewayQueue) advance() {
	q.mu.Lock()
	defer q.unlock()
	q.dispatch()
}

// ended is called when a request has ended, so that there may be room. It does
// not make its caller wait for others to be routed.
func (q *gatewayQueue) ended() {
	q.mu.Lock()
	defer q.unlock()
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
	for q.queue.Stats().Requests > 0 {
		now := q.t.d.now()
		item, ok := q.queue.Pop(now, q.saturation())
		if !ok {
			break
		}
		w := item.Value
		w.route(now)
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

// saturation is the saturation of the endpoints that can take requests; q.mu is
// held.
func (q *gatewayQueue) saturation() (full float64) {
	defer func() {
		if v := recover(); v != nil {
			q.broken = &endpick.PanicError{Stage: "transport.QueueConfig.Saturation", Value: v}
			full = 0
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
	q.mu.Unlock()
	if broken != nil {
		q.t.d.panics.Add(1)
		q.t.d.warn(nil, broken)
	}
}
