package health_test

import (
	"container/heap"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/race"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/scorer/scorertest"
	"github.com/endpick/endpick/transport/health"
)

// host is a program without a transport, on a simulated clock: a router and three
// servers. A healthy server sends its first token after 60 ms and the last one 300 ms
// later. One that fails does so after a millisecond; on one that hangs, the host gives
// up after ten seconds. Then the host tries another server.
type host struct {
	router *endpick.Router
	filter *health.Filter
	now    time.Time
	events events
	number int
	bad    func(server string) string // "", "fails", "hangs" or "breaks off"
	sent   []sent
	failed int // requests that no server completed
	// refused counts those of them that the router refused on their last attempt.
	refused int
}

type sent struct {
	at time.Time
	to string
}

type event struct {
	at time.Time
	n  int
	do func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at.Before(e[j].at) || e[i].at.Equal(e[j].at) && e[i].n < e[j].n
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}

func newHost(t *testing.T, policy string, filter *health.Filter) *host {
	config, err := preset.ByName(policy)
	if policy == "predicted-latency" { // without its goroutine
		config, err = preset.PredictedLatency(preset.PredictedLatencyConfig{Latency: predict.LatencyConfig{Synchronous: true, Trees: 10}})
	}
	require.NoError(t, err)
	h := &host{now: time.Unix(1e9, 0), bad: func(string) string { return "" }, filter: filter}
	config.Clock, config.Seed = func() time.Time { return h.now }, 1
	config.Warn = func(err error) { t.Error(err) }
	for i := range 3 {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: fmt.Sprint("s", i)})
	}
	if filter != nil {
		config.Policy = filter.Guard(config.Policy)
	}
	h.router, err = endpick.New(config)
	require.NoError(t, err)
	return h
}

func (h *host) after(d time.Duration, do func()) {
	h.number++
	heap.Push(&h.events, event{h.now.Add(d), h.number, do})
}

// ask sends one request, and again to another server each time it fails.
func (h *host) ask(t *testing.T, text string, poison bool, exclude ...string) {
	lease, err := h.router.Route(endpick.Request{
		InputTokens: len(text) / 4, Stream: true, Exclude: exclude,
		Blocks: prefix.AppendText(nil, prefix.Scope{}.Seed(), text), BlockTokens: 16,
	})
	if err != nil {
		if errors.Is(err, health.ErrUnavailable) {
			require.ErrorIs(t, err, endpick.ErrRejected)
			h.refused++
		} else {
			require.ErrorIs(t, err, endpick.ErrNoEndpoints)
		}
		h.failed++
		return
	}
	id := lease.Endpoint().ID
	h.sent = append(h.sent, sent{h.now, id})
	fail := func() {
		lease.Done(endpick.Outcome{Status: endpick.Failed})
		h.ask(t, text, poison, append(exclude, id)...)
	}
	switch bad := h.bad(id); {
	case poison, bad == "fails":
		h.after(time.Millisecond, fail)
	case bad == "hangs":
		h.after(10*time.Second, fail)
	default:
		h.after(60*time.Millisecond, lease.FirstToken)
		h.after(360*time.Millisecond, func() {
			status := endpick.Completed
			if bad != "" {
				status = endpick.Failed
			}
			lease.Tokens(20)
			lease.Done(endpick.Outcome{Status: status})
		})
	}
}

// run sends a different request every 50 ms, for a duration d.
func (h *host) run(t *testing.T, d time.Duration) {
	for end := h.now.Add(d); h.now.Before(end); {
		text := fmt.Sprintf("%-1600d", h.number)
		h.after(50*time.Millisecond, func() { h.ask(t, text, false) })
		for next := h.now.Add(50 * time.Millisecond); len(h.events) > 0 && !h.events[0].at.After(next); {
			e := heap.Pop(&h.events).(event)
			h.now = e.at
			e.do()
		}
	}
}

// share is a server's share of what was sent in a period.
func (h *host) share(id string, from, to time.Time) float64 {
	own, all := 0.0, 0.0
	for _, s := range h.sent {
		if !s.at.Before(from) && s.at.Before(to) {
			all++
			if s.to == id {
				own++
			}
		}
	}
	return own / max(all, 1)
}

// Under every preset, and without a transport, a server that fails at once, hangs or
// breaks off gets at most a twentieth of the requests after ten seconds, and its full
// share again within a minute of its recovery.
func TestARouterWithoutTransportAvoidsWhoFails(t *testing.T) {
	for _, policy := range preset.Names() {
		if race.Enabled && policy != "least-loaded" && policy != "lmetric" { // the others take long
			continue
		}
		for _, how := range []string{"fails", "hangs", "breaks off"} {
			t.Run(policy+" "+how, func(t *testing.T) {
				h := newHost(t, policy, health.NewFilter())
				h.run(t, 20*time.Second)
				began := h.now
				broken := "s1"
				if policy == "always-busiest" { // all requests go to one server
					broken = h.sent[len(h.sent)-1].to
				}
				before := h.share(broken, began.Add(-15*time.Second), began)
				h.bad = func(id string) string {
					if id == broken {
						return how
					}
					return ""
				}
				h.run(t, 50*time.Second)
				assert.LessOrEqual(t, h.share(broken, began.Add(10*time.Second), h.now), 0.05, "while it is bad")
				if how == "fails" {
					assert.LessOrEqual(t, h.share(broken, began.Add(time.Second), h.now), 0.05, "after a second")
				}
				assert.Zero(t, h.failed)

				h.bad = func(string) string { return "" }
				h.run(t, time.Minute)
				back := h.now
				h.run(t, 20*time.Second)
				if policy != "always-busiest" { // it stays with the others
					assert.GreaterOrEqual(t, h.share(broken, back, h.now), 0.75*min(before, 1.0/3))
					for _, s := range h.filter.Endpoints(h.router) {
						assert.Equal(t, health.Well, s.State, s.Endpoint)
					}
				}
			})
		}
	}
}

// Without the filter, a server that fails at once attracts the requests: this is why there is a
// filter.
func TestABareRouterIsDrawnToWhoFails(t *testing.T) {
	h := newHost(t, "least-loaded", nil)
	h.bad = func(id string) string {
		if id == "s1" {
			return "fails"
		}
		return ""
	}
	h.run(t, 20*time.Second)
	assert.Greater(t, h.share("s1", time.Time{}, h.now), 0.4, "half of all attempts: each request goes there first")
}

// Requests that fail on every server, or that clients cancel, make no server
// look unhealthy.
func TestClientsMakeNobodyLookUnhealthyToTheFilter(t *testing.T) {
	h := newHost(t, "lmetric", health.NewFilter())
	for i := range 200 {
		h.ask(t, fmt.Sprintf("%1600d poison", i%7), true)
		lease, err := h.router.Route(endpick.Request{InputTokens: 100, Stream: true})
		require.NoError(t, err)
		lease.Done(endpick.Outcome{Status: endpick.Canceled})
		h.run(t, 100*time.Millisecond)
		for _, s := range h.filter.Endpoints(h.router) {
			require.Equal(t, health.Well, s.State, "%s after %d", s.Endpoint, i)
		}
	}
	assert.NotZero(t, h.failed)
}

// A request that fails on the first server and then on another counts against
// neither, though the first has more failures.
func TestWhatFailsAtTwoServersSpeaksAgainstNeither(t *testing.T) {
	h := newHost(t, "lmetric", health.NewFilter())
	for i := range 200 {
		for _, exclude := range [][]string{{"s1", "s2"}, {"s0"}} {
			lease, err := h.router.Route(endpick.Request{InputTokens: 100 + i, Stream: true, Exclude: exclude})
			require.NoError(t, err)
			lease.Done(endpick.Outcome{Status: endpick.Failed})
		}
		h.run(t, 100*time.Millisecond)
		for _, s := range h.filter.Endpoints(h.router) {
			require.Equal(t, health.Well, s.State, "%s after %d", s.Endpoint, i)
		}
	}
}

// If all servers hang, requests are refused at once, but for an occasional trial. If
// all fail quickly, they are used. Either way all serve again once they recover.
func TestAllServersAreBad(t *testing.T) {
	for _, how := range []string{"hangs", "fails"} {
		h := newHost(t, "least-loaded", health.NewFilter())
		h.run(t, 5*time.Second)
		h.bad = func(string) string { return how }
		h.run(t, 60*time.Second)
		sent, refused := len(h.sent), h.refused
		h.run(t, 60*time.Second) // 1,200 requests
		sent, refused = len(h.sent)-sent, h.refused-refused
		if how == "hangs" {
			assert.GreaterOrEqual(t, refused, 1180)
			assert.LessOrEqual(t, sent, 3*(60/15+1), "each server is tried every 15 seconds")
			assert.GreaterOrEqual(t, sent, 3*(60/15-1))
		} else {
			assert.Zero(t, refused)
			assert.GreaterOrEqual(t, sent, 1200)
		}
		h.bad = func(string) string { return "" }
		h.run(t, 90*time.Second)
		from := h.now
		h.run(t, 20*time.Second)
		for i := range 3 {
			assert.GreaterOrEqual(t, h.share(fmt.Sprint("s", i), from, h.now), 0.25, how)
		}
	}
}

// If no server is well, requests go to those that fail quickly, where they don't wait, and
// not to the one that hangs.
func TestWhoHangsIsTheLastResort(t *testing.T) {
	h := newHost(t, "random", health.NewFilter())
	h.run(t, 5*time.Second)
	h.bad = func(id string) string {
		if id == "s0" {
			return "hangs"
		}
		return "fails"
	}
	h.run(t, time.Minute)
	from := h.now
	h.run(t, time.Minute) // 1,200 requests
	assert.LessOrEqual(t, h.share("s0", from, h.now), 0.01, "trials")
}

// The filter is asked before the policy's own stages: what it refuses is charged to
// nobody's quota, and who hangs is not the only one left.
func TestTheFilterGoesFirst(t *testing.T) {
	filter, own := health.NewFilter(), health.NewFilter()
	policy := endpick.Policy{Filters: []endpick.Filter{own}, Admitters: []endpick.Admitter{own}}
	guarded := filter.Guard(policy)
	assert.Equal(t, []endpick.Filter{filter, own}, guarded.Filters)
	assert.Same(t, filter, guarded.Admitters[0])
	assert.Same(t, own, guarded.Admitters[1])
	assert.Len(t, policy.Admitters, 1)
}

// A request is refused only if all servers available to it hang.
func TestTheFilterRefusesForTheServersThatAreLeft(t *testing.T) {
	h := newHost(t, "least-loaded", health.NewFilter())
	h.run(t, 5*time.Second)
	h.bad = func(id string) string {
		if id != "s2" {
			return "hangs"
		}
		return ""
	}
	h.run(t, 60*time.Second)
	assert.Zero(t, h.refused)
	refused := 0
	for range 40 {
		lease, err := h.router.Route(endpick.Request{InputTokens: 100, Exclude: []string{"s2"}})
		if err != nil {
			require.ErrorIs(t, err, health.ErrUnavailable)
			refused++
			continue
		}
		lease.Done(endpick.Outcome{Status: endpick.Failed})
	}
	assert.GreaterOrEqual(t, refused, 38, "but for a trial of each")
	assert.NoError(t, h.filter.Admit(new(endpick.Request), h.router.AppendCandidates(nil)), "one of three serves")
}

// Refusals that are the request's fault, or for lack of room, count against no
// server, even if another one takes the request.
func TestRefusalsMakeNobodyLookUnhealthyToTheFilter(t *testing.T) {
	h := newHost(t, "least-loaded", health.NewFilter())
	for range 200 {
		req := endpick.Request{InputTokens: 100, Stream: true}
		lease, err := h.router.Route(req)
		require.NoError(t, err)
		lease.Done(endpick.Outcome{Status: endpick.Refused})
		req.Exclude = []string{lease.Endpoint().ID}
		lease, err = h.router.Route(req)
		require.NoError(t, err)
		lease.FirstToken()
		lease.Done(endpick.Outcome{})
		h.now = h.now.Add(100 * time.Millisecond)
	}
	for _, s := range h.filter.Endpoints(h.router) {
		assert.Equal(t, health.Well, s.State, s.Endpoint)
	}
}

func TestTheFilterConforms(t *testing.T) {
	scorertest.RunFilter(t, func(*testing.T) endpick.Filter { return health.NewFilter() })
	scorertest.RunAdmitter(t, func(*testing.T) endpick.Admitter { return health.NewFilter() })
	scorertest.RunObserver(t, func(*testing.T) any { return health.NewFilter() })
	scorertest.RunPolicy(t, func(*testing.T) endpick.Policy { return health.NewFilter().Guard(preset.LMetric().Policy) })
}

// A server that streams to others while requests wait long for their first token is
// busy, not silent.
func TestTokensOfOthersAreASignOfLife(t *testing.T) {
	h := newHost(t, "least-loaded", health.NewFilter())
	h.run(t, 10*time.Second)
	require.NoError(t, h.router.Drain("s0"))
	require.NoError(t, h.router.Drain("s2"))
	route := func() endpick.Lease {
		lease, err := h.router.Route(endpick.Request{InputTokens: 100, Stream: true})
		require.NoError(t, err)
		return lease
	}
	stream := route()
	stream.FirstToken()
	waiting := []endpick.Lease{route(), route(), route(), route()}
	for range 20 {
		h.now = h.now.Add(time.Second)
		stream.Tokens(10)
	}
	route().Done(endpick.Outcome{Status: endpick.Canceled})
	state := func() health.State { return h.filter.Endpoints(h.router)[1].State }
	assert.Equal(t, health.Well, state())
	more := []endpick.Lease{route(), route(), route()}
	h.now = h.now.Add(20 * time.Second)
	route().Done(endpick.Outcome{Status: endpick.Canceled})
	assert.Equal(t, health.Out, state(), "nothing has come for twenty seconds")
	for _, l := range append(waiting, more...) {
		l.FirstToken()
		l.Done(endpick.Outcome{})
	}
	assert.Equal(t, health.Returning, state())
}

// An endpoint removed while requests are in flight, and a new one with the same name,
// inherit nothing.
func TestTheFilterForgetsWhoGoes(t *testing.T) {
	h := newHost(t, "random", health.NewFilter())
	h.run(t, 5*time.Second)
	h.bad = func(id string) string {
		if id == "s1" {
			return "hangs"
		}
		return ""
	}
	h.run(t, 8*time.Second)
	assert.Equal(t, health.Out, h.filter.Endpoints(h.router)[1].State)
	require.NoError(t, h.router.Remove("s1"))
	h.run(t, 15*time.Second)
	require.NoError(t, h.router.Add(endpick.Endpoint{ID: "s1"}))
	h.bad = func(string) string { return "" }
	from := h.now
	h.run(t, 10*time.Second)
	assert.GreaterOrEqual(t, h.share("s1", from, h.now), 0.2, "it begins anew")
}

func TestTheFilterAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	for _, out := range []bool{false, true} {
		h := newHost(t, "least-loaded", health.NewFilter())
		h.run(t, 5*time.Second)
		if out {
			h.bad = func(id string) string {
				if id == "s1" {
					return "fails"
				}
				return ""
			}
			h.run(t, 5*time.Second)
			require.Equal(t, health.Out, h.filter.Endpoints(h.router)[1].State)
		}
		req := endpick.Request{InputTokens: 100, Stream: true}
		assert.Zero(t, testing.AllocsPerRun(500, func() {
			lease, err := h.router.Route(req)
			if err != nil {
				t.Fatal(err)
			}
			lease.FirstToken()
			lease.Done(endpick.Outcome{})
		}), "with one out: %v", out)
	}
}

// Who is blamed for a failure depends on the other attempts of the same request: each row is one request, or two, made eight times.
func TestWhoIsBlamedForAFailure(t *testing.T) {
	type attempt struct {
		to, tenant string
		end        endpick.Status
		mirrored   bool
	}
	for name, tc := range map[string]struct {
		attempts []attempt
		blamed   bool // s0
	}{
		"another server serves it":       {[]attempt{{to: "s0", end: endpick.Failed}, {to: "s1"}}, true},
		"nobody else is asked":           {[]attempt{{to: "s0", end: endpick.Failed}}, true},
		"another refuses it":             {[]attempt{{to: "s0", end: endpick.Failed}, {to: "s1", end: endpick.Refused}}, true},
		"another is asked, and canceled": {[]attempt{{to: "s0", end: endpick.Failed}, {to: "s1", end: endpick.Canceled}}, true},
		"it serves it after all":         {[]attempt{{to: "s0", end: endpick.Failed}, {to: "s0"}}, false},
		"another fails it too":           {[]attempt{{to: "s0", end: endpick.Failed}, {to: "s1", end: endpick.Failed}}, false},
		"somebody else's is served": {[]attempt{
			{to: "s1", tenant: "carl"}, {to: "s1", tenant: "carl"}, {to: "s1", tenant: "carl"}, {to: "s1", tenant: "carl"},
			{to: "s0", tenant: "ann", end: endpick.Failed}, {to: "s1", tenant: "bob"}, {to: "s1", tenant: "ann", end: endpick.Failed},
		}, false},
		"another router's": {[]attempt{{to: "s0", end: endpick.Failed, mirrored: true}, {to: "s1", mirrored: true}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, "random", health.NewFilter())
			for i := range 8 {
				for _, a := range tc.attempts {
					req := endpick.Request{InputTokens: 100 + i, Tenant: a.tenant}
					for _, id := range []string{"s0", "s1", "s2"} {
						if id != a.to {
							req.Exclude = append(req.Exclude, id)
						}
					}
					if a.mirrored {
						req.Exclude, req.Adopted = nil, &endpick.Adopted{Endpoint: a.to, Mirrored: true}
					}
					lease, err := h.router.Route(req)
					require.NoError(t, err)
					require.Equal(t, a.to, lease.Endpoint().ID)
					lease.Done(endpick.Outcome{Status: a.end})
					h.now = h.now.Add(time.Millisecond)
				}
				h.now = h.now.Add(2 * time.Second)
			}
			lease, err := h.router.Route(endpick.Request{Exclude: []string{"s0", "s1"}}) // time has passed
			require.NoError(t, err)
			lease.Done(endpick.Outcome{})
			assert.Equal(t, tc.blamed, h.filter.Endpoints(h.router)[0].State != health.Well)
		})
	}
}

// The status may be asked for while the first request is being routed.
func TestStatusBesideTheFirstRequest(t *testing.T) {
	for range 100 { // for the race detector
		f := health.NewFilter()
		router, err := endpick.New(endpick.Config{Policy: f.Guard(endpick.Policy{}), Endpoints: []endpick.Endpoint{{ID: "a"}}})
		require.NoError(t, err)
		var asked sync.WaitGroup
		asked.Go(func() { assert.Len(t, f.Endpoints(router), 1) })
		lease, err := router.Route(endpick.Request{})
		require.NoError(t, err)
		require.True(t, lease.Done(endpick.Outcome{}))
		asked.Wait()
	}
}
