package sim

import (
	"errors"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/queue"
)

// Queue is a gateway queue in front of each router (BLIS, "Gateway Queue"):
// requests wait there while the fleet is saturated, so that they are routed late,
// based on fresh state, in order of importance.
type Queue struct {
	// Bounds are the limits of the queue, including its timeout.
	Bounds queue.Config
	// Saturation says when the fleet is full. Nil: the zero queue.Utilization.
	Saturation queue.Saturation
}

// QueueReport counts what became of requests in gateway queues.
type QueueReport struct {
	Dispatched int     `json:"dispatched"`
	TimedOut   int     `json:"timed_out"`
	Shed       int     `json:"shed"`    // made room for others
	Refused    int     `json:"refused"` // not accepted
	Wait       Summary `json:"wait_ms"` // of those dispatched
}

// gate is the gateway queue of one router.
type gate struct {
	queue      *queue.Queue[int] // of slots
	saturation queue.Saturation
	view       []endpick.Candidate
	busy       bool
}

func (r *run) newGate(cfg *Queue) (*gate, error) {
	g := &gate{saturation: cfg.Saturation}
	if g.saturation == nil {
		g.saturation = queue.Utilization{}
	}
	var err error
	g.queue, err = queue.New(cfg.Bounds, func(item queue.Item[int], why error) {
		if errors.Is(why, queue.ErrShed) {
			r.tally.queue.Shed++
		} else {
			r.tally.queue.TimedOut++
		}
		r.end(item.Value, rejected)
	})
	return g, err
}

// enqueue puts an arriving request into its router's queue, or routes it at once
// if there is none.
func (r *run) enqueue(slot int) {
	if r.gates == nil {
		r.dispatch(slot)
		return
	}
	f := &r.flights[slot]
	g, now := r.gates[f.router], r.clock()
	item := queue.NewItem(now, &endpick.Request{
		Priority: f.request.Priority, Tenant: f.request.Tenant, SLO: f.request.SLO, InputTokens: f.request.InputTokens,
		ExpectedOutputTokens: f.request.ExpectedOutputTokens,
	}, slot)
	if _, err := g.queue.Push(now, item); err != nil {
		r.tally.queue.Refused++
		r.end(slot, rejected)
		return
	}
	r.release()
}

// release routes requests from the queues while the fleet has room.
func (r *run) release() {
	for router, g := range r.gates {
		if g.busy {
			continue // a request that it routes has just ended, and its own loop continues
		}
		g.busy = true
		for g.queue.Len() > 0 {
			item, ok := g.queue.Pop(r.clock(), r.saturation(router))
			if !ok {
				break
			}
			slot := item.Value
			r.flights[slot].item = item
			r.tally.queue.Dispatched++
			r.tally.queueWait = append(r.tally.queueWait, millis(r.now-r.flights[slot].request.Arrival))
			r.dispatch(slot)
		}
		g.busy = false
	}
	r.armExpiry()
}

// settle tells the queue what a request has really taken.
func (r *run) settle(f *flight, input, output int) {
	if r.gates != nil {
		r.gates[f.router].queue.Settle(f.item, input, output)
	}
}

// saturation is how full the fleet is, as a router sees it.
func (r *run) saturation(router int) float64 {
	if r.cfg.ReportInterval == 0 {
		r.refresh(router)
	}
	g := r.gates[router]
	g.view = r.routers[router].AppendCandidates(g.view[:0])
	return g.saturation.Saturation(g.view)
}

// expire drops the requests that have waited for too long.
func (r *run) expire() {
	for _, g := range r.gates {
		g.queue.Expire(r.clock())
	}
	r.armExpiry()
}

func (r *run) armExpiry() {
	var first time.Time
	for _, g := range r.gates {
		if at, ok := g.queue.NextExpiry(); ok && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	r.timers.set(onExpiry, first.Sub(epoch), !first.IsZero())
}

// queued is the number of requests in queues.
func (r *run) queued() (n int) {
	for _, g := range r.gates {
		n += g.queue.Len()
	}
	return n
}

func (r *run) clock() time.Time { return epoch.Add(r.now) }
