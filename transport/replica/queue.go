package replica

import (
	"sync"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/replica/internal/protocol"
)

// queue holds events that have not been sent yet. Requests add to it and never wait; Run
// empties it. It is bounded: if Run is too slow, or is not running, events are lost, and
// Run starts over as another replica.
type queue struct {
	wake chan struct{} // for events that others should know at once
	soon chan struct{} // for events that can wait for others

	mu     sync.Mutex
	open   bool
	lost   bool
	events []event
	blocks []uint64
}

const (
	maxEvents = 1 << 14
	maxBlocks = 1 << 20
)

// event is one event. Its blocks are a range of the queue's.
type event struct {
	kind      kind
	lease     endpick.LeaseRef
	endpoint  string
	request   endpick.Request // the parts of it that are sent
	prefix    int
	outcome   protocol.Outcome
	failed    bool
	from, end int
}

type kind uint8

const (
	routed kind = iota
	firstToken
	done
	outcome
)

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1), soon: make(chan struct{}, 1)} }

func (q *queue) put(e *event, blocks []uint64, signal chan struct{}) {
	q.mu.Lock()
	switch {
	case !q.open:
		q.mu.Unlock()
		return
	case len(q.events) >= maxEvents || len(q.blocks)+len(blocks) > maxBlocks:
		q.lost = true
	default:
		e.from = len(q.blocks)
		q.blocks = append(q.blocks, blocks...)
		e.end = len(q.blocks)
		q.events = append(q.events, *e)
	}
	q.mu.Unlock()
	select {
	case signal <- struct{}{}:
	default: // a signal is pending already
	}
}

// take exchanges the queue's contents for empty slices, and reports whether events were
// lost.
func (q *queue) take(events []event, blocks []uint64) ([]event, []uint64, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	lost := q.lost
	q.lost = false
	clear(events)
	events, q.events = q.events, events[:0]
	blocks, q.blocks = q.blocks, blocks[:0]
	return events, blocks, lost
}

// set opens or closes the queue, and empties it.
func (q *queue) set(open bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open, q.lost, q.events, q.blocks = open, false, nil, nil
}
