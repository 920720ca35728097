package whole

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/endpick/endpick"
	"pgregory.net/rapid"
)

// step is one possible event. It is data, so that the same can happen in
// several worlds.
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
		req.BlockTokens = 1e300
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

// apply performs a step. It returns the decision on a request, nil if none was
// routed.
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
