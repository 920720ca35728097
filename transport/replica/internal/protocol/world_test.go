package protocol

import (
	"fmt"
	"slices"
	"time"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/require"
)

// world is some replicas on a bus that a test can degrade at will, and the truth about
// what they have routed.
type world struct {
	t        require.TestingT
	now      time.Time
	replicas []*replica
	bus      []flying
	drawn    uint64
	requests int  // so far; a request's number is also its length
	plain    bool // effects are only recorded
}

// replica is a node and what it has reported of the others.
type replica struct {
	*Node
	open  map[endpick.LeaseRef]*truth // its own
	ended []*truth
	view  map[*Lease]*seen
	// How often it has reported each request.
	opened, answered, closed map[int]int
	holds                    map[string]bool // by endpoint and last block
	outcomes                 map[string][2]int
	order                    []string // all effects, as text
	reported                 []Effect
}

// truth is a request as its own replica knows it.
type truth struct {
	id       int
	endpoint string
	answered bool
	blocks   []uint64
}

// seen is another replica's request.
type seen struct {
	id       int
	endpoint string
	answered bool
}

type flying struct {
	to      *replica
	payload []byte
}

func newWorld(t require.TestingT) *world { return &world{t: t, now: time.Unix(1000, 0)} }

func (w *world) join(instance uint32, shareBlocks bool) *replica {
	r := &replica{
		Node: New(Config{
			Instance: instance, Name: fmt.Sprint("r", instance), Secret: "secret", ShareBlocks: shareBlocks,
			Blocks: 1 << 16, Forget: 2 * time.Second,
			Draw: func() uint64 { w.drawn += 2; return w.drawn },
		}),
		open: map[endpick.LeaseRef]*truth{}, view: map[*Lease]*seen{},
		opened: map[int]int{}, answered: map[int]int{}, closed: map[int]int{},
		holds: map[string]bool{}, outcomes: map[string][2]int{},
	}
	w.replicas = append(w.replicas, r)
	return r
}

// leave ends a replica without notice.
func (w *world) leave(r *replica) {
	w.replicas = slices.DeleteFunc(w.replicas, func(o *replica) bool { return o == r })
	w.bus = slices.DeleteFunc(w.bus, func(f flying) bool { return f.to == r })
}

// take puts a replica's messages on the bus and carries out its effects.
func (w *world) take(r *replica) {
	out, effects := r.Drain()
	for _, m := range out {
		require.Less(w.t, len(m.Payload), 1<<20, "what NATS takes")
		for _, to := range w.replicas {
			if to != r && (m.To == 0 || m.To == to.instance) {
				w.bus = append(w.bus, flying{to, m.Payload})
			}
		}
	}
	r.reported = append(r.reported, effects...)
	for _, e := range effects {
		if !w.plain {
			w.do(r, e)
		}
	}
}

// do carries out an effect, which must be consistent.
func (w *world) do(r *replica, e Effect) {
	switch e.Kind {
	case Opened:
		id := e.Request.InputTokens
		require.Nil(w.t, r.view[e.Lease])
		r.view[e.Lease] = &seen{id: id, endpoint: e.Request.Adopted.Endpoint}
		r.opened[id]++
		r.learn(e.Request.Adopted.Endpoint, e.Request.Blocks)
		r.order = append(r.order, fmt.Sprint("opened ", id, " ", e.Request.Adopted.Endpoint, " ", e.Request.Model, " ", e.Request.Blocks))
	case Answered:
		s := r.view[e.Lease]
		require.NotNil(w.t, s)
		require.False(w.t, s.answered)
		s.answered = true
		r.answered[s.id]++
		r.order = append(r.order, fmt.Sprint("answered ", s.id))
	case Ended:
		s := r.view[e.Lease]
		require.NotNil(w.t, s)
		delete(r.view, e.Lease)
		r.closed[s.id]++
		if e.Outcome.Took != 0 {
			require.Equal(w.t, took(s.id), e.Outcome.Took)
		}
		r.learn(s.endpoint, e.Outcome.Blocks)
		r.order = append(r.order, fmt.Sprint("ended ", s.id, " ", e.Outcome))
	case Holds:
		r.learn(e.Request.Adopted.Endpoint, e.Request.Blocks)
		r.order = append(r.order, fmt.Sprint("holds ", e.Request.Adopted.Endpoint, e.Request.Blocks))
	case Outcomes:
		sum := r.outcomes[e.Endpoint]
		r.outcomes[e.Endpoint] = [2]int{sum[0] + e.Failed, sum[1] + e.Served}
		r.order = append(r.order, fmt.Sprint("outcomes ", e.Endpoint, e.Failed, e.Served))
	}
}

func (r *replica) learn(endpoint string, blocks []uint64) {
	for i := range blocks { // only complete heads
		r.holds[at(endpoint, blocks[i])] = true
		if i > 0 {
			parent, _ := parentOf(blocks[i])
			if parent != blocks[i-1] {
				panic(fmt.Sprint("blocks that do not follow each other: ", blocks))
			}
		}
	}
	if len(blocks) > 0 {
		if _, depth := parentOf(blocks[0]); depth != 1 {
			panic(fmt.Sprint("no head: ", blocks))
		}
	}
}

// numbered are n blocks of which no others with another i are any.
func numbered(i, n int) []uint64 {
	blocks := make([]uint64, n)
	for j := range blocks {
		blocks[j] = uint64(i)<<32 | uint64(j+1)
	}
	return blocks
}

// ref is a lease of a replica.
func ref(slot int) endpick.LeaseRef { return endpick.LeaseRef{Slot: uint32(slot), Generation: 1} }

func at(endpoint string, block uint64) string { return fmt.Sprint(endpoint, "/", block) }

// Blocks in tests encode what precedes them: a block is the path to it, four bits a
// step, each from 1 to 8.
func chain(path []int) (blocks []uint64) {
	var b uint64
	for _, step := range path {
		b = b<<4 | uint64(step)
		blocks = append(blocks, b)
	}
	return blocks
}

func parentOf(block uint64) (parent uint64, depth int) {
	for b := block; b != 0; b >>= 4 {
		depth++
	}
	return block >> 4, depth
}

// took is how long a request takes, which identifies it.
func took(id int) time.Duration { return time.Duration(id) * tick }

func (w *world) route(r *replica, endpoint, model string, blocks []uint64) endpick.LeaseRef {
	w.requests++
	lease := ref(w.requests)
	r.open[lease] = &truth{id: w.requests, endpoint: endpoint, blocks: blocks}
	r.Routed(lease, endpoint, &endpick.Request{Model: model, InputTokens: w.requests, Stream: true}, 0, blocks)
	return lease
}

func (w *world) first(r *replica, ref endpick.LeaseRef) {
	r.open[ref].answered = true
	r.FirstToken(ref)
}

func (w *world) done(r *replica, ref endpick.LeaseRef, status endpick.Status, whole []uint64) {
	o := r.open[ref]
	delete(r.open, ref)
	r.ended = append(r.ended, o)
	if status == endpick.Completed && whole != nil {
		o.blocks = whole
	}
	r.Done(ref, &Outcome{Outcome: endpick.Outcome{Status: status, OutputTokens: 3, Blocks: whole}, Took: took(o.id), TTFT: tick})
}

// deliver delivers one message of the bus.
func (w *world) deliver(i int, keep bool) {
	f := w.bus[i]
	if !keep {
		w.bus = slices.Delete(w.bus, i, i+1)
	}
	receive(f.to.Node, w.now, f.payload)
	w.take(f.to)
}

// receive gives a node a message in memory that is overwritten afterwards.
func receive(n *Node, now time.Time, payload []byte) {
	lent := slices.Clone(payload)
	n.Receive(now, lent)
	for i := range lent {
		lent[i] ^= 0xff
	}
}

// deliverAll delivers what is on the bus, in order, and what that causes.
func (w *world) deliverAll() {
	for len(w.bus) > 0 {
		w.deliver(0, false)
	}
}

// calm lets time pass on a perfect bus.
func (w *world) calm(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(50 * time.Millisecond) {
		for _, r := range w.replicas {
			r.Flush(w.now)
			r.Tick(w.now)
			w.take(r)
		}
		w.deliverAll()
	}
}

// converged checks that every replica knows exactly what all others have in flight.
func (w *world) converged() {
	for _, r := range w.replicas {
		want := map[int]seen{}
		for _, o := range w.replicas {
			if o == r {
				continue
			}
			for _, x := range o.open {
				want[x.id] = seen{x.id, x.endpoint, x.answered}
			}
		}
		got := map[int]seen{}
		for _, s := range r.view {
			got[s.id] = *s
		}
		require.Equal(w.t, want, got, "what replica %d sees", r.instance)
		require.Equal(w.t, len(want), r.mirrored)
		for _, p := range r.Peers() {
			require.True(w.t, p.Live && !p.Behind)
		}
		require.Len(w.t, r.Peers(), len(w.replicas)-1)
		for _, p := range r.peers { // nothing waits for blocks that have arrived
			require.Empty(w.t, p.early)
			require.Zero(w.t, p.heldBytes)
		}
		require.Len(w.t, r.log.open, len(r.open))
		require.Len(w.t, r.log.byNumber, len(r.open))
	}
}
