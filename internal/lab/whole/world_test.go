package whole

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/scorer/preset/all"
	"pgregory.net/rapid"
)

const (
	leaseTimeout = 10 * time.Minute
	indexBytes   = 1 << 20 // the minimum
	mostModels   = 3
)

// world is a router with all stages at once, and what is known of its leases.
type world struct {
	rt       *rapid.T
	router   *endpick.Router
	index    *prefix.Index
	latency  predict.Latency
	policies [2]endpick.Policy
	now      time.Time
	leases   []*lease
	present  map[string]endpick.Endpoint
	draining map[string]bool
	marks    map[string]endpick.Snapshot
	steps    []string
	unlisted int // leases that are not in leases
}

// lease is what a lease should be.
type lease struct {
	endpick.Lease
	ref    endpick.EndpointRef // of its endpoint
	stream bool
	used   time.Time // the last call on it, by the router's clock
	closed bool
}

// options are the differences between the worlds of one test.
type options struct {
	order   func([]endpick.Endpoint) []endpick.Endpoint
	policy  func(*endpick.Policy)
	seed    uint64
	healthy bool // no stage panics
}

func newWorld(rt *rapid.T, o options) *world {
	w := &world{
		rt: rt, now: time.Unix(1_000_000, 0), present: map[string]endpick.Endpoint{}, draining: map[string]bool{},
		marks: map[string]endpick.Snapshot{},
	}
	p := rig.Must(all.PredictedLatency(all.PredictedLatencyConfig{
		Index:   prefix.IndexConfig{MaxBytes: indexBytes},
		Latency: predict.LatencyConfig{Synchronous: true, Trees: 4, MaxModels: mostModels},
	})).Policy
	w.index, w.latency = p.Matcher.(*prefix.Index), p.Predictor.(predict.Latency)
	other := endpick.Policy{
		Name: "lmetric", Matcher: p.Matcher, Predictor: p.Predictor,
		Filters: []endpick.Filter{scorer.Hotspot(scorer.HotspotConfig{})},
		Scorers: []endpick.Weighted{{Scorer: scorer.LMetric(), Weight: 2}, {Scorer: scorer.NoHitLRU(), Weight: 1}},
		Picker:  endpick.WeightedRandom{},
	}
	poisoned := &poison{healthy: o.healthy}
	for i, p := range []endpick.Policy{p, other} {
		p.Filters = slices.Concat([]endpick.Filter{poisoned}, p.Filters)
		if o.policy != nil {
			o.policy(&p)
		}
		w.policies[i] = p
	}
	endpoints := []endpick.Endpoint{endpointOf(0, 0), endpointOf(1, 0), endpointOf(2, 0)}
	for _, e := range endpoints {
		w.present[e.ID] = e
	}
	if o.order != nil {
		endpoints = o.order(endpoints)
	}
	w.router = rig.Must(endpick.New(endpick.Config{
		Policy: w.policies[0], Endpoints: endpoints, Seed: max(o.seed, 1), LeaseTimeout: leaseTimeout,
		Clock: func() time.Time { return w.now },
	}))
	w.warm()
	return w
}

// ids of endpoints; they are the host's and may look like anything.
var ids = []string{"server-0", "http://10.0.0.1:8000", `serveur "é"`, "server-3"}

func endpointOf(i, kind int) endpick.Endpoint {
	e := endpick.Endpoint{ID: ids[i], Variant: []string{"a", "", "a"}[i%3]}
	switch kind % 4 {
	case 1:
		e.Models, e.Labels = []string{"model-0"}, map[string]string{"": "\x00", "a\nb": ""}
	case 2:
		e.Models, e.Adapters, e.KVTokens = []string{"model-0", "model-1"}, []string{"lora"}, 4096
	case 3:
		e.MaxSequences, e.KVTokens = 4, math.MaxInt32
	}
	if kind >= 4 {
		e.MaxInFlight, e.MaxContext, e.Tier, e.Weight = 1+i%3, []int{0, 100, 700}[(i+kind)%3], 1+kind%2, []float64{0, 0.5, 3}[i%3]
	}
	return e
}

func serves(e *endpick.Endpoint, model string) bool {
	return model == "" || len(e.Models)+len(e.Adapters) == 0 || slices.Contains(e.Models, model) || slices.Contains(e.Adapters, model)
}

// warm teaches the predictor, so that there are predictions.
func (w *world) warm() {
	for i := range 80 {
		l := rig.Must(w.router.Route(endpick.Request{Model: "model-0", InputTokens: 1 + i*97%3000, Stream: i%4 > 0}))
		w.now = w.now.Add(time.Duration(20+i*7%90) * time.Millisecond)
		if i%4 > 0 {
			l.FirstToken()
		}
		w.now = w.now.Add(time.Duration(500+i*31%400) * time.Millisecond)
		l.Tokens(20)
		l.Done(endpick.Outcome{OutputTokens: 20})
	}
	if w.latency.Health()[0].TTFT.Refits == 0 {
		w.rt.Fatal("nothing is predicted")
	}
}

func (w *world) failf(format string, args ...any) {
	w.rt.Fatalf("%s\nThe smallest case:\n  %s", fmt.Sprintf(format, args...), strings.Join(w.steps, "\n  "))
}

func (w *world) did(format string, args ...any) {
	w.steps = append(w.steps, fmt.Sprintf(format, args...))
}

// prompt is the first n blocks of a family; families share their first two blocks.
func prompt(family, n int) []uint64 {
	blocks := make([]uint64, n)
	for i := range blocks {
		blocks[i] = endpick.Salt(fmt.Sprint(family, " ", i))
		if i < 2 {
			blocks[i] = endpick.Salt(fmt.Sprint(i))
		}
	}
	return blocks
}

// decision is the outcome of routing a request.
type decision struct {
	err     error
	id      string
	receipt endpick.Receipt
	lease   *lease
}

func (d *decision) String() string {
	if d.err != nil {
		return "refused: " + d.err.Error()
	}
	text := "to " + d.id
	for i := range d.receipt.Verdicts {
		v := &d.receipt.Verdicts[i]
		text += fmt.Sprintf("; %s H %d score %v, %v by %s", v.Candidate.Endpoint.ID, v.Candidate.PrefixTokens, v.Score, v.Candidate.Prediction, v.RemovedBy)
	}
	return text
}

// route routes a request and keeps account of it.
func (w *world) route(req endpick.Request) *decision {
	d := &decision{}
	req.Receipt = &d.receipt
	blocks := slices.Clone(req.Blocks)
	req.Blocks = blocks
	l, err := w.router.Route(req)
	for i := range blocks {
		blocks[i] = math.MaxUint64 // the memory is the caller's again
	}
	w.notice()
	if d.err = err; err != nil {
		return d
	}
	d.id = l.Endpoint().ID
	c, ok := l.Candidate()
	if !ok {
		w.failf("a lease that was just opened is closed")
	}
	d.lease = &lease{Lease: l, ref: c.Ref, stream: req.Stream, used: w.router.Now()}
	w.leases = append(w.leases, d.lease)
	return d
}

// notice closes leases that were reaped, after checking that reaping them was right.
func (w *world) notice() (reaped int) {
	for _, l := range w.leases {
		if _, open := l.Candidate(); open || l.closed {
			continue
		}
		if unused := w.router.Now().Sub(l.used); unused <= leaseTimeout {
			w.failf("a lease was reaped that was heard of %v ago", unused)
		}
		l.closed = true
		reaped++
	}
	return reaped
}

// closeAll ends everything and checks that nothing is left of it.
func (w *world) closeAll() {
	for _, l := range w.leases {
		if l.Done(endpick.Outcome{}) == l.closed {
			w.failf("Done says %v of a lease that was closed: %v", !l.closed, l.closed)
		}
		l.closed = true
	}
	for _, e := range w.router.Endpoints() {
		if e.Removed || e.Candidate.InFlight != (endpick.InFlight{}) {
			w.failf("%s: removed %v, %+v in flight after all is done", e.Candidate.Endpoint.ID, e.Removed, e.Candidate.InFlight)
		}
	}
	if s := w.router.Stats(); s.OpenLeases != 0 || s.RemovedOpen != 0 || s.Routed != s.Closed {
		w.failf("after all is done: %+v", s)
	}
}

// checkRefusal fails if a request was dropped by anything but an admitter.
func (w *world) checkRefusal(req *endpick.Request, err error) {
	var bad *endpick.RequestError
	switch {
	case errors.As(err, new(*endpick.RejectedError)) && req.Priority < 0 && req.SLO.Asked() && req.Adopted == nil:
	case errors.As(err, &bad):
		if req.InputTokens >= 0 && req.ExpectedOutputTokens >= 0 && req.BlockTokens >= 0 {
			w.failf("a valid request is refused: %v", err)
		}
	case (errors.As(err, new(*endpick.NoEndpointError)) || errors.As(err, new(*endpick.ContextError))) && req.Adopted == nil && !w.hasRoom(req):
	case errors.Is(err, endpick.ErrUnknownEndpoint) && req.Adopted != nil:
		if _, present := w.present[req.Adopted.Endpoint]; present {
			w.failf("%v, and it is there", err)
		}
	default:
		w.failf("%v, and there are endpoints that serve %q", err, req.Model)
	}
}

// hasRoom reports whether an endpoint takes the request, as operators have set it.
func (w *world) hasRoom(req *endpick.Request) bool {
	tokens := float64(req.InputTokens)
	if tokens == 0 {
		tokens = math.Ceil(float64(len(req.Blocks)) * req.TokensPerBlock())
	}
	inFlight := map[string]int{}
	for _, s := range w.router.Endpoints() {
		if !s.Removed {
			inFlight[s.Candidate.Endpoint.ID] = s.Candidate.InFlight.Requests
		}
	}
	room, others := [2]bool{}, false // of those to avoid, and of others, if there are any
	for id, e := range w.present {
		if w.draining[id] || !serves(&e, req.Model) || slices.Contains(req.Exclude, id) || e.MaxContext > 0 && tokens > float64(e.MaxContext) {
			continue
		}
		free := e.MaxInFlight == 0 || inFlight[id] < e.MaxInFlight
		if slices.Contains(req.Avoid, id) {
			room[0] = room[0] || free
		} else {
			room[1], others = room[1] || free, true
		}
	}
	return room[1] || room[0] && !others
}
