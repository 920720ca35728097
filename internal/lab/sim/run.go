package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
)

// epoch is the wall time at which every run begins.
var epoch = time.Unix(1_700_000_000, 0).UTC()

// The owners of timers, in the order in which simultaneous ones fire. The
// engines follow, by index.
const (
	onNotice = iota
	onArrival
	onWindow
	onReport
	onMeter
	onEngine
)

// run is the state of one simulation.
type run struct {
	cfg     Config
	now     time.Duration
	timers  *timers
	source  Source
	routers []*endpick.Router
	servers []server
	byID    map[string]int

	flights []flight // by slot
	free    []int    // slots
	open    int
	next    int // the router of the next request
	events  []engine.Event
	tally   tally
	news    news
	notices []notice // by routers, ordered by due time
	err     error
}

// server is a model server of the fleet and its state.
type server struct {
	Server
	engine   *engine.Engine
	prefill  time.Duration // PrefillBusy at the start of the window
	requests int           // completed
}

// flight is a request between its arrival and its end.
type flight struct {
	request  Request
	router   int
	lease    endpick.Lease
	server   int // −1: none yet
	excluded []string
	first    time.Duration // time of its first token
	started  bool          // it has a first token
	cached   int
	metered  int // tokens reported to the router
	refused  outcome
	shadow   *shadow // nil: other routers don't know it
}

// Run simulates one policy on one workload. The error is a [*ConfigError], or
// that of a constructor of the router or the engine, or of the workload.
func Run(cfg Config) (*Report, error) {
	r, err := newRun(cfg)
	if err != nil {
		return nil, err
	}
	if err := r.loop(); err != nil {
		return nil, err
	}
	return r.finish(), nil
}

// loop handles events until no request is left.
func (r *run) loop() error {
	for {
		_, more := r.source.Next()
		if r.err != nil || !more && r.open == 0 {
			return r.err
		}
		owner, at, ok := r.timers.first()
		if !ok {
			return nil
		}
		if at > engine.MaxTime/2 {
			return fmt.Errorf("sim: the run does not end: %d requests in flight after %v", r.open, at)
		}
		r.now = max(r.now, at)
		switch owner {
		case onNotice:
			r.hear()
		case onArrival:
			r.arrive()
		case onWindow:
			r.window()
		case onReport:
			r.report()
		case onMeter:
			r.meter()
		default:
			r.advance(owner - onEngine)
		}
	}
}

func (r *run) armArrival() {
	at, ok := r.source.Next()
	r.timers.set(onArrival, at, ok)
}

func (r *run) armEngine(i int) {
	at, ok := r.servers[i].engine.NextEvent()
	r.timers.set(onEngine+i, at, ok)
}

// arrive takes a request from the workload and sends it to a server.
func (r *run) arrive() {
	request := r.source.Take()
	request.Arrival = r.now
	slot := r.take()
	f := &r.flights[slot]
	f.request, f.server, f.router = request, -1, r.next
	r.next = (r.next + 1) % len(r.routers)
	r.tally.arrived(&f.request)
	r.dispatch(slot)
	r.armArrival()
}

// dispatch routes a request until a server accepts it or none is left.
func (r *run) dispatch(slot int) {
	f := &r.flights[slot]
	for {
		if r.cfg.ReportInterval == 0 {
			r.refresh(f.router)
		}
		r.listen()
		request := endpick.Request{
			Model:       f.request.Model,
			InputTokens: f.request.InputTokens, Blocks: f.request.promptBlocks(), BlockTokens: BlockTokens, Exact: true,
			ExpectedOutputTokens: f.request.ExpectedOutputTokens, Stream: !f.request.Whole,
			Priority: f.request.Priority, SLO: f.request.SLO,
			Tenant: f.request.Tenant, Session: f.request.Session,
			Exclude: f.excluded,
		}
		lease, err := r.routers[f.router].Route(request)
		switch {
		case err == nil:
		case errors.As(err, new(*endpick.NoEndpointError)):
			r.end(slot, f.refused) // why the endpoints that were tried did not accept it
			return
		case errors.As(err, new(*endpick.RejectedError)):
			r.end(slot, rejected)
			return
		default:
			r.fail(err)
			return
		}
		f.lease, f.server = lease, r.byID[lease.Endpoint().ID]
		r.tellRouted(f, &request)
		err = r.servers[f.server].engine.Submit(r.now, engine.Request{
			ID: uint64(slot), PromptTokens: f.request.InputTokens, OutputTokens: f.request.OutputTokens,
			Blocks: f.request.Blocks,
		})
		if err == nil {
			r.armEngine(f.server)
			return
		}
		if !errors.As(err, new(*engine.TooLongError)) {
			r.fail(err)
			return
		}
		f.refused = tooLong
		r.retry(f)
	}
}

// fail ends the run: the workload returned an impossible request.
func (r *run) fail(err error) {
	if r.err == nil {
		r.err = fmt.Errorf("sim: request %d: %w", r.tally.requests, err)
	}
}

// retry ends the current attempt, so that the next one goes elsewhere.
func (r *run) retry(f *flight) {
	f.excluded = append(f.excluded, r.servers[f.server].Endpoint.ID)
	f.lease.Done(endpick.Outcome{Status: endpick.Failed})
	r.tellDone(f, endpick.Outcome{Status: endpick.Failed})
	f.lease, f.server = endpick.Lease{}, -1
	r.tally.retried++
}

// advance advances a server and passes on its events.
func (r *run) advance(i int) {
	r.events = r.servers[i].engine.Advance(r.now, r.events[:0])
	for _, e := range r.events {
		slot := int(e.ID)
		f := &r.flights[slot]
		switch e.Kind {
		case engine.FirstToken:
			f.started, f.first, f.cached = true, e.At, e.CachedTokens
			r.tally.firstToken(f)
			if !f.request.Whole {
				f.metered = 1
				f.lease.Tokens(1)
				r.tellFirst(f)
			}
		case engine.Completed:
			f.lease.Tokens(f.request.OutputTokens - f.metered)
			outcome := endpick.Outcome{
				InputTokens: f.request.InputTokens, OutputTokens: f.request.OutputTokens,
				CachedTokens: f.cached, HasCachedTokens: true,
			}
			if r.cfg.NoUsage {
				outcome = endpick.Outcome{OutputTokens: f.request.OutputTokens}
			}
			if !r.cfg.PromptsOnly {
				outcome.Blocks = f.request.Blocks
			}
			f.lease.Done(outcome)
			r.tellDone(f, outcome)
			r.tally.completed(f, r.now)
			r.servers[i].requests++
			r.end(slot, completed)
		}
	}
	r.armEngine(i)
}

// end removes a request from the simulation.
func (r *run) end(slot int, how outcome) {
	f := &r.flights[slot]
	r.tally.outcomes[how]++
	request := f.request
	*f = flight{excluded: f.excluded[:0]}
	r.free = append(r.free, slot)
	r.open--
	r.source.Done(&request, r.now)
	r.armArrival()
}

func (r *run) take() int {
	r.open++
	if n := len(r.free); n > 0 {
		slot := r.free[n-1]
		r.free = r.free[:n-1]
		return slot
	}
	r.flights = append(r.flights, flight{})
	return len(r.flights) - 1
}
