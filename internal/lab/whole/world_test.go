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
	switch {
	case errors.As(err, new(*endpick.RejectedError)) && req.Priority < 0 && req.SLO.Asked() && req.Adopted == nil:
	case errors.As(err, new(*endpick.RequestError)):
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

// step is one possible event. It is data, so that the same can happen in several worlds.
type step struct {
	kind      string
	endpoint  int
	endpoints []int
	of        int // the endpoint's kind; from 4 on, it has limits
	lease     int
	request   endpick.Request
	load      endpick.Load
	marked    bool
	outcome   endpick.Outcome
	tokens    int
	pass      time.Duration
}

// kinds of steps; likelier ones occur more than once.
var kinds = []string{
	"route", "route", "route", "route", "done", "done", "first token", "first token", "tokens", "keep-alive", "retry", "lose",
	"mark", "report", "report", "pass", "jump", "jump", "sweep", "add", "set", "update", "drain", "resume", "remove", "swap",
}

var requests = rapid.Custom(func(t *rapid.T) endpick.Request {
	req := endpick.Request{
		Model:                rapid.SampledFrom([]string{"model-0", "model-0", "model-1", "", "nobody's\x00"}).Draw(t, "model"),
		ExpectedOutputTokens: rapid.SampledFrom([]int{0, 0, 10, 1000}).Draw(t, "output"),
		Stream:               rapid.Bool().Draw(t, "stream"),
		Tenant:               rapid.SampledFrom([]string{"", "tenant", "another"}).Draw(t, "tenant"),
		Session:              rapid.SampledFrom([]string{"", "session"}).Draw(t, "session"),
		Priority:             rapid.IntRange(-1, 1).Draw(t, "priority"),
	}
	req.Blocks = prompt(rapid.IntRange(0, 3).Draw(t, "family"), rapid.IntRange(0, 40).Draw(t, "blocks"))
	req.InputTokens = rapid.SampledFrom([]int{0, 1, 16, 100, 640, 700, 100_000}).Draw(t, "input")
	target := func(label string) time.Duration {
		return rapid.SampledFrom([]time.Duration{0, 0, 0, -1, time.Nanosecond, time.Millisecond, 50 * time.Millisecond, time.Minute, math.MaxInt64}).Draw(t, label)
	}
	req.SLO = endpick.SLO{TTFT: target("TTFT"), TPOT: target("TPOT")}
	switch rapid.IntRange(0, 19).Draw(t, "oddity") {
	case 19:
		req.InputTokens = -1
	case 18:
		req.InputTokens = math.MaxInt32
	case 17:
		req.BlockTokens = math.NaN()
	case 16:
		req.ExpectedOutputTokens = math.MinInt
	case 15:
		req.BlockTokens = 1e-300
	case 14:
		req.BlockTokens = 1e9
	case 13:
		req.Adopted = &endpick.Adopted{Endpoint: rapid.SampledFrom(ids).Draw(t, "adopted")}
	}
	return req
})

var steps = rapid.Custom(func(t *rapid.T) step {
	s := step{kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
	switch s.kind {
	case "route":
		s.request = requests.Draw(t, "request")
		s.request.Exclude = drawIDs(t, "exclude")
		s.request.Avoid = drawIDs(t, "avoid")
	case "done", "first token", "tokens", "keep-alive", "retry", "lose":
		s.lease = rapid.IntRange(0, 30).Draw(t, "lease")
		s.tokens = rapid.IntRange(-1, 200).Draw(t, "tokens")
		s.outcome = endpick.Outcome{
			Status:          endpick.Status(rapid.IntRange(0, 2).Draw(t, "status")),
			InputTokens:     rapid.SampledFrom([]int{0, -1, 100, math.MaxInt32}).Draw(t, "engine's input"),
			OutputTokens:    rapid.SampledFrom([]int{0, -1, 50, math.MaxInt32}).Draw(t, "engine's output"),
			CachedTokens:    rapid.SampledFrom([]int{0, -1, 16, 160, math.MaxInt32}).Draw(t, "cached"),
			HasCachedTokens: rapid.Bool().Draw(t, "says what was cached"),
		}
		if rapid.IntRange(0, 3).Draw(t, "knows the next turn") == 3 {
			s.outcome.Blocks = prompt(rapid.IntRange(0, 3).Draw(t, "family"), rapid.IntRange(0, 50).Draw(t, "blocks"))
		}
	case "mark", "report":
		s.endpoint = rapid.IntRange(0, len(ids)-1).Draw(t, "endpoint")
		number := rapid.SampledFrom([]float64{0, 1, 5, 100, 1e9, 1e300, -1, math.NaN(), math.Inf(1), math.Inf(-1)})
		share := rapid.SampledFrom([]float64{0, 0.01, 0.5, 1, 1.5, -1, math.NaN()})
		s.load = endpick.Load{Waiting: number.Draw(t, "waiting"), Running: number.Draw(t, "running"), KVUsage: share.Draw(t, "KV usage"),
			Absent: endpick.Signals(rapid.SampledFrom([]int{0, 0, 0, 1, 2, 4, 7}).Draw(t, "absent"))}
		s.marked = rapid.Bool().Draw(t, "marked")
	case "pass":
		s.pass = rapid.SampledFrom([]time.Duration{time.Millisecond, 100 * time.Millisecond, 3 * time.Second, 2 * time.Minute, 6 * time.Minute}).Draw(t, "time")
	case "jump":
		s.pass = rapid.SampledFrom([]time.Duration{-time.Second, -time.Hour, time.Hour, 11 * time.Minute, 30 * 24 * time.Hour}).Draw(t, "jump")
	case "add", "update", "drain", "resume", "remove":
		s.endpoint = rapid.IntRange(0, len(ids)-1).Draw(t, "endpoint")
		s.of = rapid.IntRange(0, 7).Draw(t, "kind of endpoint")
	case "set":
		s.endpoints = rapid.SliceOfNDistinct(rapid.IntRange(0, len(ids)-1), 1, len(ids), rapid.ID).Draw(t, "endpoints")
		s.of = rapid.IntRange(0, 7).Draw(t, "kind of endpoint")
	}
	return s
})

func drawIDs(t *rapid.T, label string) (some []string) {
	if rapid.IntRange(0, 4).Draw(t, label) == 4 {
		some = append(some, rapid.SampledFrom(ids).Draw(t, "ID"))
	}
	return some
}

// draw returns the events of one case.
func draw(rt *rapid.T) []step { return rapid.SliceOfN(steps, 1, 50).Draw(rt, "steps") }

// apply performs a step. It returns the decision on a request, nil if none was routed.
func (w *world) apply(s step) *decision {
	l := w.leaseOf(s.lease)
	id := ids[s.endpoint]
	switch s.kind {
	case "route":
		w.did("a request of %d tokens, %d blocks for %q, %+v, stream %v", s.request.InputTokens, len(s.request.Blocks), s.request.Model, s.request.SLO, s.request.Stream)
		d := w.route(s.request)
		if d.err != nil {
			w.checkRefusal(&s.request, d.err)
		}
		w.did("... %v", d)
		return d
	case "done", "retry":
		if l == nil {
			return nil
		}
		w.did("%s: %+v", s.kind, s.outcome)
		failed := l.Endpoint().ID
		if s.kind == "retry" {
			s.outcome.Status = endpick.Failed
		}
		if l.Done(s.outcome) == l.closed {
			w.failf("Done says %v of a lease that was closed: %v", !l.closed, l.closed)
		}
		l.closed = true
		if l.Done(s.outcome) {
			w.failf("Done closes a lease twice")
		}
		if s.kind == "retry" {
			req := endpick.Request{Model: "model-0", Blocks: prompt(1, 10), Stream: l.stream, Exclude: []string{failed}}
			d := w.route(req)
			if d.err != nil {
				w.checkRefusal(&req, d.err)
			} else if d.id == failed {
				w.failf("the endpoint that failed a request is asked again")
			}
			return d
		}
	case "first token":
		if l != nil {
			w.did("first token on %s", l.Endpoint().ID)
			l.FirstToken()
			l.used = w.router.Now()
		}
	case "tokens", "keep-alive":
		if l == nil {
			return nil
		}
		if s.kind == "keep-alive" {
			s.tokens = 0
		}
		w.did("%d tokens on %s", s.tokens, l.Endpoint().ID)
		l.Tokens(s.tokens)
		l.used = w.router.Now()
	case "lose": // left for the clock to find
	case "mark":
		w.marks[id] = w.router.Snapshot(id)
	case "report":
		if s.marked {
			s.load.Snapshot = w.marks[id]
		}
		w.did("%s reports %v, %v, %v without %d", id, s.load.Waiting, s.load.Running, s.load.KVUsage, s.load.Absent)
		err := w.router.Report(id, s.load)
		if _, there := w.present[id]; !there && !errors.Is(err, endpick.ErrUnknownEndpoint) {
			w.failf("a report of %s, which is not there: %v", id, err)
		}
	case "pass", "jump":
		w.did("the clock moves by %v", s.pass)
		w.now = w.now.Add(s.pass)
	case "sweep":
		w.did("sweep")
		if n, noticed := w.router.Sweep(w.now), w.notice(); w.unlisted == 0 && n != noticed {
			w.failf("Sweep says %d, and %d leases were closed", n, noticed)
		}
	case "swap":
		w.did("another policy")
		w.policies[0], w.policies[1] = w.policies[1], w.policies[0]
		if err := w.router.SetPolicy(w.policies[0]); err != nil {
			w.failf("SetPolicy: %v", err)
		}
	default:
		w.change(s, id)
	}
	w.notice()
	return nil
}

func (w *world) leaseOf(n int) *lease {
	if len(w.leases) == 0 {
		return nil
	}
	return w.leases[len(w.leases)-1-n%len(w.leases)] // the newest are the likeliest to be open
}

// change changes the fleet.
func (w *world) change(s step, id string) {
	_, there := w.present[id]
	w.did("%s %s %d %v", s.kind, id, s.of, s.endpoints)
	check := func(err error, want bool) {
		if (err == nil) != want {
			w.failf("%s %s: %v, and it is there: %v", s.kind, id, err, there)
		}
	}
	e := endpointOf(s.endpoint, s.of)
	switch s.kind {
	case "add":
		check(w.router.Add(e), !there)
		if !there {
			w.present[id] = e
			delete(w.marks, id)
		}
	case "update":
		check(w.router.Update(e), there)
		if there {
			w.present[id] = e
		}
	case "drain", "resume":
		if s.kind == "drain" {
			check(w.router.Drain(id), there)
		} else {
			check(w.router.Resume(id), there)
		}
		w.draining[id] = there && s.kind == "drain"
	case "remove":
		check(w.router.Remove(id), there)
		delete(w.present, id)
		delete(w.draining, id)
	case "set":
		next := map[string]endpick.Endpoint{}
		var list []endpick.Endpoint
		for _, i := range s.endpoints {
			e := endpointOf(i, s.of)
			next[e.ID], list = e, append(list, e)
		}
		check(w.router.SetEndpoints(list), true)
		for id := range w.draining {
			if _, stays := next[id]; !stays {
				delete(w.draining, id)
			}
		}
		w.present = next
	default:
		panic(fmt.Sprint("no such step: ", s.kind))
	}
}

// poison is a stage that panics in every third of its calls, depending on the request.
type poison struct{ healthy bool }

func (p *poison) strike(n uint64) {
	if !p.healthy && n%3 == 1 {
		panic("poison")
	}
}

func (p *poison) Filter(req *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	p.strike(req.Number())
	return candidates
}

func (p *poison) Routed(e *endpick.Event)                   { p.strike(e.Request.Number() + 1) }
func (p *poison) FirstToken(e *endpick.Event)               { p.strike(e.Request.Number() + 2) }
func (p *poison) Done(e *endpick.Event, _ *endpick.Outcome) { p.strike(e.Request.Number()) }
func (p *poison) EndpointRemoved(ref endpick.EndpointRef)   { p.strike(uint64(ref.Slot)) }
