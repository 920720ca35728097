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
	// Saturation says when the endpoints are full. Nil: the zero queue.Utilization,
	// which uses what each endpoint reports, or for one that reports nothing the
	// requests in flight relative to MaxSequences. It must not call the transport.
	// If it panics, the endpoints count as not full, and Config.Warn is called.
	Saturation queue.Saturation
}

// QueueStatus is the gateway queue at one moment.
type QueueStatus struct {
	queue.Stats
	Requests int   // held requests
	Tokens   int64 // of their prompts
	Bytes    int64 // memory that they hold
	// Saturation is how full the endpoints are: 1 and above is full.
	Saturation float64
}

// Queue returns the state of the gateway queue; false if there is none.
func (t *Transport) Queue() (QueueStatus, bool) {
	h := t.hold
	if h == nil {
		return QueueStatus{}, false
	}
	h.mu.Lock()
	defer h.unlock()
	return QueueStatus{
		Stats: h.queue.Stats(), Requests: h.queue.Len(), Tokens: h.queue.Tokens(), Bytes: h.queue.Bytes(),
		Saturation: h.saturation(),
	}, true
}

// hold drives the gateway queue in real time. It has no goroutine: arriving
// requests advance the queue, and so does a timer, which only runs while
// requests wait.
type hold struct {
	t    *Transport
	full queue.Saturation

	mu    sync.Mutex // guards the fields below; held while a request is routed
	queue *queue.Queue[*held]
	timer *time.Timer
	view  []endpick.Candidate
	sick  []string
	// broken is a panic of full, to be reported without the lock.
	broken *endpick.PanicError
}

// held is a request in the queue. It leaves with a lease, an error, or a panic of
// Route, such as after a stage has overwritten what it must not: the panic belongs to
// this request, whoever routes it.
type held struct {
	trip     *trip
	since    time.Time
	lease    endpick.Lease
	err      error
	panicked any
	left     chan struct{} // closed when it has left
}

// route gives the request its lease or its error.
func (w *held) route(now time.Time) {
	defer func() { w.panicked = recover() }()
	if target := &w.trip.Request.SLO.TTFT; *target > 0 {
		*target = max(*target-max(now.Sub(w.since), 0), 1)
	}
	w.lease, w.err = w.trip.route()
}

func newHold(t *Transport, config QueueConfig) (*hold, error) {
	h := &hold{t: t, full: config.Saturation}
	if h.full == nil {
		h.full = queue.Utilization{}
	}
	var err error
	h.queue, err = queue.New(config.Bounds, func(item queue.Item[*held], why error) {
		item.Value.err = why
		close(item.Value.left)
	})
	h.timer = time.AfterFunc(math.MaxInt64, h.advance)
	h.timer.Stop()
	return h, err
}

// route waits for the request's turn and routes it. The error is that of
// [endpick.Router.Route], a [queue.Error] or that of the request's context.
func (h *hold) route(tr *trip) (endpick.Lease, error) {
	ctx := tr.in.Context()
	w := &held{trip: tr, since: h.t.now(), left: make(chan struct{})}
	item := queue.NewItem(w.since, &tr.Request, w)
	item.Bytes = tr.memory()

	handle, err := h.push(item)
	if err != nil {
		return endpick.Lease{}, err
	}
	select {
	case <-w.left:
	case <-ctx.Done():
		h.mu.Lock()
		_, waited := h.queue.Cancel(handle)
		h.unlock()
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

func (h *hold) push(item queue.Item[*held]) (queue.Handle, error) {
	h.mu.Lock()
	defer h.unlock()
	handle, err := h.queue.Push(item.Value.since, item)
	if err == nil {
		h.dispatch()
	}
	return handle, err
}

// advance dispatches requests while there is room.
func (h *hold) advance() {
	h.mu.Lock()
	defer h.unlock()
	h.dispatch()
}

// ended is called when a request has ended, so that there may be room. It does
// not make its caller wait for others to be routed.
func (h *hold) ended() {
	h.mu.Lock()
	defer h.unlock()
	if h.queue.Len() > 0 {
		h.timer.Reset(0)
	}
}

// settle charges the tenant in the queue for what the request has really taken; x
// is nil if it was never sent.
func (tr *trip) settle(x *exchange, status endpick.Status) {
	input, output := 0, 0
	if x != nil {
		seen := x.meter.Seen()
		input, output = tr.Request.InputTokens, seen.OutputTokens
		if seen.Reported {
			input = seen.InputTokens
		}
		if (status == endpick.Failed || status == endpick.Refused) && output == 0 {
			input = 0
		}
	}
	h := tr.t.hold
	h.mu.Lock()
	defer h.unlock()
	h.queue.Settle(tr.queued, input, output)
	tr.queued, tr.charged = queue.Item[*held]{}, false
}

// dispatch routes requests while the endpoints have room. Each is in flight
// before the next one is considered. h.mu is held.
func (h *hold) dispatch() {
	for h.queue.Len() > 0 {
		now := h.t.now()
		item, ok := h.queue.Pop(now, h.saturation())
		if !ok {
			break
		}
		w := item.Value
		w.route(now)
		if w.lease != (endpick.Lease{}) {
			w.trip.queued, w.trip.charged = item, true
		} else {
			h.queue.Settle(item, 0, 0) // before others get their turns
		}
		close(w.left)
	}
	next, ok := h.queue.NextExpiry()
	if !ok {
		h.timer.Stop()
		return
	}
	h.timer.Reset(min(recheck, max(next.Sub(h.t.now()), 0)))
}

// saturation is the saturation of the endpoints that can take requests; h.mu is
// held.
func (h *hold) saturation() (full float64) {
	defer func() {
		if v := recover(); v != nil {
			h.broken = &endpick.PanicError{Stage: "transport.QueueConfig.Saturation", Value: v}
			full = 0
		}
	}()
	h.view = h.t.config.Router.AppendCandidates(h.view[:0])
	if len(h.view) == 0 {
		return 0 // nothing to wait for
	}
	h.sick = h.t.desk.Health.Out(h.sick[:0])
	slices.Sort(h.sick)
	well := endpick.Keep(h.view, func(c *endpick.Candidate) bool {
		_, sick := slices.BinarySearch(h.sick, c.Endpoint.ID)
		return !sick
	})
	if len(well) == 0 {
		well = h.view // they are tried anyway
	}
	return h.full.Saturation(well)
}

// unlock releases h.mu, and reports problems.
func (h *hold) unlock() {
	broken := h.broken
	h.broken = nil
	h.mu.Unlock()
	if broken != nil {
		h.t.panics.Add(1)
		h.t.warn(nil, broken)
	}
}
