package replica

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/replica/internal/protocol"
)

// Replica is one of several routers in front of a fleet. It is an admitter that admits
// everything, so that it can be part of a policy and observe its requests. It belongs
// to one router and is safe for concurrent use.
type Replica struct {
	endpick.Exclusive
	config  Config
	queue   *queue
	running atomic.Bool

	mu     sync.Mutex
	status Status
}

// New returns a replica, which shares nothing before Run, or an
// [endpick.ConfigError].
func New(config Config) (*Replica, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	return &Replica{config: config, queue: newQueue()}, nil
}

// tellOutcome is called by health.
func (r *Replica) tellOutcome(endpoint string, failed bool) {
	r.queue.put(&event{kind: outcome, endpoint: endpoint, failed: failed}, nil, r.queue.soon)
}

// Name is what receipts show.
func (*Replica) Name() string { return "replica" }

// Admit implements [endpick.Admitter]; it admits everything.
func (*Replica) Admit(*endpick.Request, []endpick.Candidate) error { return nil }

// Routed implements [endpick.RoutedObserver].
func (r *Replica) Routed(e *endpick.Event) {
	if mirrored(e.Request) {
		return
	}
	req := e.Request
	blocks := req.Blocks
	if r.config.DisableIndex {
		blocks = nil
	}
	r.queue.put(&event{
		kind: routed, lease: e.Lease, endpoint: e.Candidate.Endpoint.ID, prefix: max(e.Candidate.PrefixTokens, 0),
		request: endpick.Request{
			Model: req.Model, Adapter: req.Adapter, Tenant: req.Tenant, SLO: req.SLO, Stream: req.Stream, Exact: req.Exact,
			InputTokens: req.InputTokens, ExpectedOutputTokens: req.ExpectedOutputTokens, BlockTokens: req.BlockTokens,
			Responses: req.Responses,
		},
	}, blocks, r.queue.wake)
}

// mirrored reports whether another replica has sent the request.
func mirrored(req *endpick.Request) bool { return req.Adopted != nil && req.Adopted.Mirrored }

// FirstToken implements [endpick.FirstTokenObserver].
func (r *Replica) FirstToken(e *endpick.Event) {
	if !mirrored(e.Request) {
		r.queue.put(&event{kind: firstToken, lease: e.Lease}, nil, r.queue.soon)
	}
}

// Done implements [endpick.DoneObserver].
func (r *Replica) Done(e *endpick.Event, o *endpick.Outcome) {
	if mirrored(e.Request) {
		return
	}
	shared := protocol.Outcome{Outcome: *o}
	shared.OutputTokens, shared.Blocks = e.OutputTokens, nil
	if took, ok := e.E2E(); ok {
		shared.Took = max(took, time.Nanosecond)
		shared.TTFT, _ = e.TTFT()
	}
	blocks := o.Blocks
	if r.config.DisableIndex || o.Status != endpick.Completed {
		blocks = nil
	}
	signal := r.queue.soon
	if e.Candidate.Endpoint.MaxInFlight > 0 {
		signal = r.queue.wake // others may wait for the room
	}
	r.queue.put(&event{kind: done, lease: e.Lease, outcome: shared}, blocks, signal)
}
