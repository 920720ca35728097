package scorertest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"pgregory.net/rapid"
)

// RunPolicy checks that routers with the policy keep their invariants whatever they are
// asked:
//
//   - No stage breaks its contract or panics, or changes what the router knows about an
//     endpoint.
//   - The same inputs give the same choices, even if the endpoints were added in another
//     order, and even if the caller reuses the memory of its requests.
//   - A request goes to an endpoint that serves its model and is neither excluded nor
//     drained. Only an Admitter refuses a request, with a reason.
//   - Scores are finite, and within [0, 1] if several are combined. Matches are shorter than
//     prompts, and predictions are possible.
//   - What is in flight is what is open, and nothing when everything is closed.
//
// Leases are closed twice, late and never, endpoints come and go, reports are broken and
// clocks are set back. newPolicy returns a policy without history; if its predictor learns,
// it must do so within the router's calls (see predict.LatencyConfig.Synchronous). It is
// called many times. Some endpoints have one of these sets of labels: give those that a stage reads, or
// it is checked without.
func RunPolicy(t *testing.T, newPolicy func(*testing.T) endpick.Policy, labels ...map[string]string) {
	t.Helper()
	checkPolicy(suiteOf(t, labels...), newPolicy)
}

func checkPolicy(s suite, newPolicy func(*testing.T) endpick.Policy) {
	s.property("invariants", func(t *testing.T, rt *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(rt, "endpoints")
		p := &pair{suite: s, rt: rt, present: map[string]bool{}}
		var endpoints []endpick.Endpoint
		for i := range n {
			endpoints = append(endpoints, s.server(i))
			p.present[endpoints[i].ID] = true
		}
		seed := rapid.Uint64Min(1).Draw(rt, "seed")
		p.one = newHost(rt, newPolicy(t), endpoints, seed)
		other := reordered(rt, endpoints, func(e endpick.Endpoint) string { return e.ID })
		p.other = newHost(rt, newPolicy(t), other, seed)
		p.other.scribbles = true
		step := func(f func()) func(*rapid.T) {
			return func(rt *rapid.T) {
				p.rt = rt
				p.pass(time.Duration(rapid.Int64Range(0, int64(2*time.Second)).Draw(rt, "wait")))
				f()
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			// More likely steps are listed more than once.
			"route": step(p.route), "route another": step(p.route), "route a third": step(p.route), "route a fourth": step(p.route),
			"report": step(p.report), "tokens": step(p.tokens), "done": step(p.end), "done with another": step(p.end),
			"churn": step(p.churn), "jump": step(p.jump), "silence": step(p.silence), "": func(rt *rapid.T) { p.rt = rt; p.check() },
		})
		p.closeAll()
	})
	s.property("not asked", func(t *testing.T, rt *rapid.T) { notAsked(t, rt, newPolicy) })
	s.once("concurrency", func(t *testing.T) string {
		h := newHost(t, newPolicy(t), []endpick.Endpoint{s.server(0), s.server(2)}, 1)
		return concurrentRequests(h.router, "model-0", s.server(2))
	})
}

// server is one of those of [RunPolicy]: two at a time have the same labels and different models.
func (s suite) server(i int) endpick.Endpoint {
	e := endpick.Endpoint{ID: fmt.Sprintf("server-%d", i), Models: []string{fmt.Sprintf("model-%d", i%2)}}
	if set := (i/2 + 1) % (len(s.labels) + 1); set > 0 {
		e.Labels = s.labels[set-1]
	}
	return e
}

// pair is two routers with the same policy, to which the same things happen.
type pair struct {
	suite
	story
	rt         *rapid.T
	one, other *host
	present    map[string]bool // endpoints; true if they take requests
}

// host is a router with its open leases.
type host struct {
	router    *endpick.Router
	now       time.Time
	open      []endpick.Lease
	scribbles bool
	warned    error
}

func newHost(t rapid.TB, p endpick.Policy, endpoints []endpick.Endpoint, seed uint64) *host {
	t.Helper()
	h := &host{now: time.Unix(1, 0)}
	r, err := endpick.New(endpick.Config{
		Policy: p, Endpoints: endpoints, Seed: seed,
		Clock: func() time.Time { return h.now },
		Warn:  func(err error) { h.warned = err },
	})
	if err != nil {
		t.Fatalf("a router with this policy: %v", err)
	}
	h.router = r
	return h
}

func (p *pair) failf(format string, args ...any) { p.story.failf(p.rt, format, args...) }

func (p *pair) pass(d time.Duration) { p.one.now, p.other.now = p.one.now.Add(d), p.other.now.Add(d) }

// both applies f to both routers, which must give the same result.
func (p *pair) both(what string, f func(h *host) error) error {
	a, b := f(p.one), f(p.other)
	if (a == nil) != (b == nil) {
		p.failf("%s: one router said %v, the other, with its endpoints in another order, %v", what, a, b)
	}
	return a
}

func (p *pair) id() string {
	return fmt.Sprintf("server-%d", rapid.IntRange(0, 5).Draw(p.rt, "endpoint"))
}

// lease draws an open lease.
func (p *pair) lease() int {
	if len(p.one.open) == 0 {
		p.rt.Skip("no lease is open")
	}
	return rapid.IntRange(0, len(p.one.open)-1).Draw(p.rt, "lease")
}

func (p *pair) report() {
	id := p.id()
	load := endpick.Load{
		Waiting: float64(rapid.IntRange(0, 20).Draw(p.rt, "waiting")),
		Running: float64(rapid.IntRange(0, 200).Draw(p.rt, "running")),
		KVUsage: rapid.OneOf(rapid.Float64Range(0, 1), rapid.SampledFrom([]float64{math.NaN(), -1, math.Inf(1)})).Draw(p.rt, "KV usage"),
		Absent:  endpick.Signals(rapid.SampledFrom([]int{0, 0, 0, 1, 2, 4, 7}).Draw(p.rt, "absent")),
	}
	p.did("%s reports %v waiting, %v running, KV usage %v, without %d", id, load.Waiting, load.Running, load.KVUsage, load.Absent)
	p.both("Report", func(h *host) error { return h.router.Report(id, load) })
}

func (p *pair) tokens() {
	i := p.lease()
	p.did("5 tokens come for the request on %s", p.one.open[i].Endpoint().ID)
	for _, h := range []*host{p.one, p.other} {
		h.open[i].Tokens(5)
	}
}

func (p *pair) churn() {
	id := p.id()
	switch present := p.present[id]; rapid.IntRange(0, 3).Draw(p.rt, "change") {
	case 0:
		p.did("%s is removed", id)
		p.both("Remove", func(h *host) error { return h.router.Remove(id) })
		delete(p.present, id)
	case 1, 2:
		p.did("%s is added", id)
		if p.both("Add", func(h *host) error { return h.router.Add(p.server(int(id[len(id)-1] - '0'))) }) == nil {
			p.present[id] = true
		}
	case 3:
		p.did("%s is drained, or takes requests again", id)
		change := (*endpick.Router).Resume
		if present {
			change = (*endpick.Router).Drain
		}
		if p.both("Drain or Resume", func(h *host) error { return change(h.router, id) }) == nil {
			p.present[id] = !present
		}
	}
}

func (p *pair) jump() {
	d := rapid.SampledFrom([]time.Duration{-time.Second, -time.Hour, time.Minute}).Draw(p.rt, "jump")
	p.did("the clock moves by %v", d)
	p.pass(d)
}

func (p *pair) silence() {
	p.did("an hour without a word: all requests are taken for lost")
	p.one.router.Sweep(p.one.now) // after the clock was set back, silence counts from here
	p.other.router.Sweep(p.other.now)
	p.pass(time.Hour)
	for _, h := range []*host{p.one, p.other} {
		if n := h.router.Sweep(h.now); n != len(h.open) {
			p.failf("%d of %d requests that nobody closed were taken for lost after an hour", n, len(h.open))
		}
		for _, l := range h.open {
			if l.Done(endpick.Outcome{}) {
				p.failf("a request that was taken for lost could be closed again")
			}
		}
		h.open = nil
	}
}

func (p *pair) end() {
	i := p.lease()
	outcome := endpick.Outcome{Status: statuses[rapid.IntRange(0, len(statuses)-1).Draw(p.rt, "status")], OutputTokens: 10}
	if outcome.HasCachedTokens = rapid.Bool().Draw(p.rt, "says what was cached"); outcome.HasCachedTokens {
		outcome.CachedTokens = rapid.IntRange(0, 1<<14).Draw(p.rt, "cached")
	}
	p.did("the request on %s ends, twice: %s", p.one.open[i].Endpoint().ID, showOutcome(&outcome))
	for _, h := range []*host{p.one, p.other} {
		if !h.open[i].Done(outcome) || h.open[i].Done(outcome) {
			p.failf("the first Done closes a lease, the second does nothing")
		}
		h.open = slices.Delete(h.open, i, i+1)
	}
}

func (p *pair) route() {
	req := drawRequest(p.rt, "request")
	req.Adapter = ""
	req.Model = rapid.SampledFrom([]string{"model-0", "model-1"}).Draw(p.rt, "model")
	req.InputTokens = min(req.InputTokens, 1<<14)
	// Prompts of a few families, so that heads are shared.
	req.Blocks = prompt(rapid.Uint64Range(0, families).Draw(p.rt, "family"), req.InputTokens/endpick.DefaultBlockTokens)
	if rapid.IntRange(0, 4).Draw(p.rt, "exclude") == 0 {
		req.Exclude = []string{"server-0"}
	}
	if rapid.IntRange(0, 9).Draw(p.rt, "adopted") == 9 {
		if id := strings.Replace(req.Model, "model", "server", 1); p.present[id] {
			req.Exclude, req.Adopted = nil, &endpick.Adopted{Endpoint: id}
		}
	}
	p.did("%s", showRequest(&req))
	before, reaped := copies(p.one.router.AppendCandidates(nil)), p.one.router.Stats().Reaped
	var receipt endpick.Receipt
	a, errA := p.one.route(req, &receipt)
	b, errB := p.other.route(req, nil)
	switch {
	case (errA == nil) != (errB == nil):
		p.failf("one router said %v, the other, with its endpoints in another order, %v", answer(errA), answer(errB))
	case errA != nil:
		p.refused(&req, errA)
		return
	case a.Endpoint().ID != b.Endpoint().ID:
		p.failf("one router chose %s; the other, with its endpoints in another order, and a caller who uses the memory of requests again, %s:\n%s",
			a.Endpoint().ID, b.Endpoint().ID, receipt.String())
	case len(req.Exclude) > 0 && a.Endpoint().ID == req.Exclude[0]:
		p.failf("%s was chosen, and was excluded", a.Endpoint().ID)
	case a.Endpoint().Models[0] != req.Model:
		p.failf("%s was chosen, and does not serve %s", a.Endpoint().ID, req.Model)
	case !p.present[a.Endpoint().ID]:
		p.failf("%s was chosen, and is drained or gone", a.Endpoint().ID)
	}
	p.one.open, p.other.open = append(p.one.open, a), append(p.other.open, b)
	p.examine(&req, &receipt)
	if p.one.router.Stats().Reaped > reaped {
		return // something else has changed
	}
	for i := range receipt.Verdicts {
		c := &receipt.Verdicts[i].Candidate
		if was := find(before, c.Endpoint.ID); was == nil || showFacts(was) != showFacts(c) {
			p.failf("a stage changed what the router knows of %s, and the next request finds: a stage changes nothing but what it is there for.\nBefore: %s\nAfter:  %s",
				c.Endpoint.ID, showFacts(was), showFacts(c))
		}
	}
}

// facts is the part of a candidate that no stage may change, without what depends on other
// candidates.
func facts(c *endpick.Candidate) endpick.Candidate {
	f := *c
	f.PrefixTokens, f.Prediction = 0, endpick.Prediction{}
	for _, s := range []struct {
		signal endpick.Signals
		value  *float64
	}{{endpick.WaitingSignal, &f.Waiting}, {endpick.RunningSignal, &f.Running}, {endpick.KVUsageSignal, &f.KVUsage}} {
		if f.Reported&s.signal == 0 {
			*s.value = 0 // the mean of those that report it
		}
	}
	return f
}

func showFacts(c *endpick.Candidate) string {
	if c == nil {
		return "it is not there"
	}
	f := facts(c)
	s := showEndpoint(c.Endpoint) + ", " + showCandidate(&f)
	if c.Report != nil {
		s += ", it reported " + showReport(c.Report)
	}
	return s
}

// route routes a request, and then overwrites what the caller owns.
func (h *host) route(req endpick.Request, receipt *endpick.Receipt) (endpick.Lease, error) {
	req.Blocks, req.Exclude, req.Receipt = slices.Clone(req.Blocks), slices.Clone(req.Exclude), receipt
	lease, err := h.router.Route(req)
	if h.scribbles {
		overwrite(req.Blocks)
		clear(req.Exclude)
	}
	return lease, err
}

// refused checks that there was a reason.
func (p *pair) refused(req *endpick.Request, err error) {
	var rejected *endpick.RejectedError
	if errors.As(err, &rejected) {
		if rejected.Reason == nil || rejected.Reason.Error() == "" {
			p.failf("an Admitter refuses without a word: who is refused is told why")
		}
		if req.Adopted != nil {
			p.failf("an adopted request was refused: %v", err)
		}
		return
	}
	for id, takes := range p.present {
		if takes && p.server(int(id[len(id)-1] - '0')).Models[0] == req.Model && !slices.Contains(req.Exclude, id) {
			p.failf("%v, and %s serves %s", err, id, req.Model)
		}
	}
}

// examine checks the results of the stages.
func (p *pair) examine(req *endpick.Request, receipt *endpick.Receipt) {
	for i := range receipt.Verdicts {
		v := &receipt.Verdicts[i]
		id := v.Candidate.Endpoint.ID
		if h := v.Candidate.PrefixTokens; h < 0 || h > max(req.InputTokens-1, 0) {
			p.failf("%s is said to hold %d of %d tokens: at most one less, since engines compute the last one again", id, h, req.InputTokens)
		}
		if fault := wrongPrediction(&v.Candidate.Prediction); fault != "" {
			p.failf("what is predicted of %s: %s", id, fault)
		}
		if math.IsNaN(v.Score) || math.IsInf(v.Score, 0) {
			p.failf("the score of %s is %v: scores are finite", id, v.Score)
		}
		if len(v.Scores) > 1 && v.RemovedBy == "" && (v.Score < 0 || v.Score > 1) {
			p.failf("the combined score of %s is %v: it is within [0, 1]", id, v.Score)
		}
	}
}

func (p *pair) check() {
	for _, h := range []*host{p.one, p.other} {
		if s := h.router.Stats(); s.Panics+s.StageErrors > 0 {
			p.failf("%v", h.warned)
		}
		// Routing reaps leases that have been silent for ten minutes.
		h.open = slices.DeleteFunc(h.open, func(l endpick.Lease) bool { _, ok := l.Candidate(); return !ok })
		requests := 0
		for _, e := range h.router.Endpoints() {
			requests += e.Candidate.InFlight.Requests
		}
		if requests != len(h.open) {
			p.failf("%d requests in flight, %d leases open", requests, len(h.open))
		}
	}
	if one, other := len(p.one.open), len(p.other.open); one != other {
		p.failf("one router has %d leases open, the other %d", one, other)
	}
}

func (p *pair) closeAll() {
	for _, h := range []*host{p.one, p.other} {
		for _, l := range h.open {
			l.Done(endpick.Outcome{})
		}
		for _, e := range h.router.Endpoints() {
			if e.Candidate.InFlight != (endpick.InFlight{}) {
				p.failf("%s: %+v in flight after all is done", e.Candidate.Endpoint.ID, e.Candidate.InFlight)
			}
		}
	}
}
