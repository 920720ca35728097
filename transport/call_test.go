package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/dialect"
	"github.com/endpick/endpick/transport/internal/health"
	"github.com/endpick/endpick/transport/internal/host"
)

// first is a stage that prefers endpoints by name: a, then b, then c.
type first struct{}

func (first) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i, c := range candidates {
		dst[i] = 1 / float64(1+strings.Index("abc", c.Endpoint.ID))
	}
}

// sheds is a stage that rejects everything while it is on.
type sheds struct{ on bool }

func (s *sheds) Admit(*endpick.Request, []endpick.Candidate) error {
	if s.on {
		return errors.New("full")
	}
	return nil
}

// timeout is the error of a wait that timed out.
type timeout struct{ error }

func (timeout) Timeout() bool { return true }

type world struct {
	*Dispatcher
	at    time.Time
	sheds sheds
}

// newWorld has endpoints a, b and c, which serve any model unless changed.
func newWorld(t testing.TB, change ...func([]endpick.Endpoint)) *world {
	w := &world{at: time.Unix(1000, 0)}
	endpoints := []endpick.Endpoint{{ID: "a"}, {ID: "b"}, {ID: "c"}}
	for _, f := range change {
		f(endpoints)
	}
	router, err := endpick.New(endpick.Config{
		Policy:    endpick.Policy{Scorers: []endpick.Weighted{{Scorer: first{}, Weight: 1}}, Admitters: []endpick.Admitter{&w.sheds}},
		Endpoints: endpoints, Clock: func() time.Time { return w.at },
	})
	require.NoError(t, err)
	w.Dispatcher, err = NewDispatcher(Config{Router: router, RetryBurst: 10})
	require.NoError(t, err)
	return w
}

// call returns a request that may be sent twice.
func (w *world) call() *Call {
	return &Call{d: w.Dispatcher, parsed: new(dialect.Call), method: "POST", harmless: true, Request: endpick.Request{Model: "m"}}
}

// sent sends a request to an endpoint.
func (w *world) sent(t testing.TB, id string) health.Attempt {
	ref, ok := w.config.Router.Ref(id)
	require.True(t, ok)
	return w.health.Sent(id, ref)
}

// remove removes an endpoint that has a request in flight, so that it is still listed.
func (w *world) remove(t testing.TB, id string) {
	_, err := (&Call{d: w.Dispatcher}).adopt(id)
	require.NoError(t, err)
	require.NoError(t, w.config.Router.Remove(id))
	require.Len(t, w.config.Router.Endpoints(), 3)
}

// asked is where a p goes now: an ID, or an error.
func (w *world) asked(p *Call) string {
	lease, err := p.choose(context.Background())
	if err != nil {
		return err.Error()
	}
	defer lease.Done(endpick.Outcome{Status: endpick.Canceled})
	return lease.Endpoint().ID
}

// out puts an endpoint out.
func (w *world) out(t testing.TB, id string, err error) {
	for range 3 {
		w.sent(t, id).Because(err).Ended(Unreachable)
	}
	require.True(t, w.health.IsOut(id))
}

func TestResults(t *testing.T) {
	for kind, statuses := range map[Result][]int{
		Refused: {400, 401, 404, 408, 413, 428, 430, 451, 499, 501, 505},
		Erred:   {500, 502, 503, 504, 506, 529, 599},
	} {
		for _, status := range statuses {
			assert.Equal(t, kind, resultOf(status), status)
		}
	}
	assert.Equal(t, "answered 503 Service Unavailable", statusError(503).Error())
	assert.Contains(t, errFirstEvent.Error(), "error event")
	dial := &net.OpError{Op: "dial", Err: errors.New("refused")}
	assert.True(t, host.IsDial(fmt.Errorf("wrapped: %w", dial)))
	assert.False(t, host.IsDial(&net.OpError{Op: "read", Err: dial.Err}))
	assert.False(t, host.IsDial(nil))
}

// Which endpoint is next after a failure of each kind, and what that costs.
func TestAgain(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tc := range []struct {
		name     string
		kind     Result
		change   func(w *world, p *Call)
		ctx      context.Context
		paid     bool
		want     bool
		left     int // of a budget of two
		turnedBy uint64
	}{
		{name: "erred", kind: Erred, want: true, left: 1},
		{name: "broken", kind: Broken, want: true, left: 1},
		{name: "full", kind: Full, want: true, left: 1},
		{name: "paid", kind: Erred, paid: true, want: true, left: 2},
		{name: "unreachable", kind: Unreachable, want: true, left: 2},
		{name: "unreachable, which may not be repeated", kind: Unreachable, want: true, left: 2,
			change: func(_ *world, p *Call) { p.harmless = false }},
		{name: "full, which may not be repeated", kind: Full, want: true, left: 1, change: func(_ *world, p *Call) { p.harmless = false }},
		{name: "broken, which may not be repeated", kind: Broken, left: 2, change: func(_ *world, p *Call) { p.harmless = false }},
		{name: "may not be repeated", kind: Erred, left: 2, change: func(_ *world, p *Call) { p.harmless = false }},
		{name: "the client has gone", kind: Unreachable, ctx: gone, left: 2},
		{name: "the last attempt", kind: Erred, left: 2, change: func(_ *world, p *Call) { p.attempts = 3 }},
		{name: "the last attempt, refused", kind: Unreachable, want: true, left: 2, change: func(_ *world, p *Call) { p.attempts = 3 }},
		{name: "one before", kind: Erred, want: true, left: 1, change: func(_ *world, p *Call) { p.attempts = 2 }},
		{name: "no budget", kind: Erred, turnedBy: 1, change: func(w *world, _ *Call) {
			w.budget.Retry(w.at)
			w.budget.Retry(w.at)
		}},
		{name: "no budget, and paid", kind: Erred, paid: true, want: true, change: func(w *world, _ *Call) {
			w.budget.Retry(w.at)
			w.budget.Retry(w.at)
		}},
		{name: "a refusal", kind: Refused, left: 2},
		{name: "a second refusal", kind: Refused, want: true, left: 2, change: func(w *world, _ *Call) {
			w.sent(t, "a").Ended(Refused)
		}},
		{name: "a second refusal, which may not be repeated", kind: Refused, left: 2, change: func(w *world, p *Call) {
			w.sent(t, "a").Ended(Refused)
			p.harmless = false
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			w.budget = newBudget(0, 2)
			p := w.call()
			p.attempts = 1
			if tc.change != nil {
				tc.change(w, p)
			}
			ctx := tc.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			a := &Attempt{call: p, ctx: ctx, stage: failed, result: tc.kind, health: w.sent(t, "a"), paid: tc.paid}
			if tc.kind == Full {
				a.http = 429
			}
			assert.Equal(t, tc.want, a.Again())
			assert.False(t, a.Again(), "it is asked once")
			assert.Equal(t, tc.turnedBy, w.denied.Load())
			left := 0
			for w.budget.Retry(w.at) {
				left++
			}
			assert.Equal(t, tc.left, left)
		})
	}
}

// A tenth of the burst comes back each second.
func TestBudget(t *testing.T) {
	b := newBudget(0.5, 20)
	at := time.Unix(1000, 0)
	take := func() (n int) {
		for b.Retry(at) {
			n++
		}
		return n
	}
	assert.Equal(t, 20, take())
	at = at.Add(time.Second)
	assert.Equal(t, 2, take())
	for range 10 {
		b.Request(at)
	}
	assert.Equal(t, 5, take())
}

// How failures count against their endpoint, after three requests with these results.
func TestWhatFailuresSayOfEndpoints(t *testing.T) {
	for _, tc := range []struct {
		name      string
		kinds     []Result // of each request, at a and then at b
		served    bool     // by any endpoint, in the end
		change    func(*Call)
		unhealthy string
		why       health.State
	}{
		{name: "another has served it", kinds: []Result{Erred}, served: true, unhealthy: "a", why: health.Failing},
		{name: "broken off, another has served it", kinds: []Result{Broken}, served: true, unhealthy: "a", why: health.Failing},
		{name: "refused, another has served it", kinds: []Result{Refused}, served: true, unhealthy: "a", why: health.Failing},
		{name: "two have failed it, so that neither stands out", kinds: []Result{Erred, Broken}, served: true},
		{name: "nobody has served it", kinds: []Result{Erred}},
		{name: "both have failed it", kinds: []Result{Erred, Erred}},
		{name: "nobody else was to be asked", kinds: []Result{Erred}, change: func(p *Call) { p.single = true }, unhealthy: "a", why: health.Failing},
		{name: "nobody else could be asked", kinds: []Result{Erred}, change: func(p *Call) { p.harmless = false }, unhealthy: "a", why: health.Failing},
		{name: "refused, which may not be repeated", kinds: []Result{Refused}, change: func(p *Call) { p.harmless = false }},
		{name: "unreachable", kinds: []Result{Unreachable}, unhealthy: "a", why: health.Unreachable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			for range 3 {
				p := w.call()
				if tc.change != nil {
					tc.change(p)
				}
				for i, kind := range tc.kinds {
					p.suspects.Add(w.sent(t, []string{"a", "b"}[i]), kind)
				}
				if tc.served {
					p.suspects.Served()
				}
				p.giveUp()
				p.suspects.Served() // failures count only once
			}
			var unhealthy []string
			for _, id := range []string{"a", "b", "c"} {
				if w.health.IsOut(id) {
					unhealthy = append(unhealthy, id)
				}
			}
			assert.Equal(t, tc.unhealthy, strings.Join(unhealthy, " "))
			if tc.why != health.Well {
				ref, _ := w.config.Router.Ref("a")
				assert.Equal(t, tc.why, w.health.Status(ref).State)
			}
		})
	}
}

// A trial that fails with a request that every endpoint fails is followed by the next.
func TestATrialOfWhatEverybodyFails(t *testing.T) {
	for _, tc := range []struct{ both, served, next bool }{{true, false, true}, {false, false, false}, {true, true, false}} {
		w := newWorld(t)
		w.out(t, "a", nil)
		w.at = w.at.Add(time.Second)
		p := w.call()
		p.suspects.Add(w.sent(t, "a"), Erred)
		if tc.both {
			p.suspects.Add(w.sent(t, "b"), Erred)
		}
		if tc.served {
			p.suspects.Served()
		}
		p.giveUp()
		ref, _ := w.config.Router.Ref("a")
		assert.Equal(t, tc.next, !w.health.Status(ref).NextTrial.After(w.at), tc)
	}
}

// An endpoint that takes long to fail is not asked even if it is the only one, as
// long as it stays that way.
func TestRouteInVain(t *testing.T) {
	w := newWorld(t)
	w.out(t, "a", timeout{errors.New("no route")})
	p := w.call()
	p.exclude = append(p.exclude, "b", "c")
	_, err := p.choose(context.Background())
	require.ErrorAs(t, err, new(*endpick.NoEndpointError))
	assert.ErrorContains(t, err, "3 excluded, 0 draining; endpoints that are unhealthy and do not answer: 1")
	w.at = w.at.Add(time.Second)
	assert.Equal(t, "a", w.asked(p), "its trial")
}

// An endpoint chosen by another party gets its accounts, whatever state it is in.
func TestAdopt(t *testing.T) {
	w := newWorld(t)
	w.out(t, "b", nil)
	w.sheds.on = true
	p := w.call()
	p.exclude = append(p.exclude, "b")
	p.Request.Receipt = new(endpick.Receipt)
	p.Request.Receipt.Chosen = -7
	lease, err := p.adopt("b")
	require.NoError(t, err)
	assert.Equal(t, "b", lease.Endpoint().ID)
	assert.Equal(t, 1, w.config.Router.Stats().OpenLeases)
	assert.Equal(t, -7, p.Request.Receipt.Chosen, "it tells of a choice, and this is none")
	lease.Done(endpick.Outcome{})
	assert.Zero(t, w.config.Router.Stats().OpenLeases)

	w.remove(t, "c")
	for _, id := range []string{"x", "c", ""} {
		_, err = p.adopt(id)
		require.ErrorIs(t, err, endpick.ErrUnknownEndpoint, id)
	}
	w.sheds.on = false
	assert.Equal(t, "a", w.asked(p), "it has no say in the next choice")
}

func TestHasOthers(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func([]endpick.Endpoint)
		do     func(w *world, p *Call)
		want   bool
	}{
		{name: "yes", want: true},
		{name: "of other models", change: func(e []endpick.Endpoint) { e[1].Models, e[2].Adapters = []string{"x"}, []string{"y"} }},
		{name: "one of its model", change: func(e []endpick.Endpoint) { e[1].Models, e[2].Models = []string{"x"}, []string{"x", "m"} }, want: true},
		{name: "one with its adapter", change: func(e []endpick.Endpoint) {
			e[1].Models, e[2].Models, e[2].Adapters = []string{"m"}, []string{"m"}, []string{"l"}
		},
			do: func(_ *world, p *Call) { p.Request.Adapter = "l" }, want: true},
		{name: "none with its adapter", change: func(e []endpick.Endpoint) { e[1].Models, e[2].Models = []string{"m"}, []string{"m"} },
			do: func(_ *world, p *Call) { p.Request.Adapter = "l" }},
		{name: "no model asked for", change: func(e []endpick.Endpoint) { e[1].Models, e[2].Models = []string{"x"}, []string{"x"} },
			do: func(_ *world, p *Call) { p.Request.Model = "" }, want: true},
		{name: "excluded", do: func(_ *world, p *Call) { p.exclude = append(p.exclude, "b", "c") }},
		{name: "one excluded", do: func(_ *world, p *Call) { p.exclude = append(p.exclude, "b") }, want: true},
		{name: "out and removed", do: func(w *world, _ *Call) {
			w.out(t, "b", nil)
			w.remove(t, "c")
		}},
		{name: "draining", do: func(w *world, _ *Call) {
			_ = w.config.Router.Drain("b")
			_ = w.config.Router.Drain("c")
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var changes []func([]endpick.Endpoint)
			if tc.change != nil {
				changes = append(changes, tc.change)
			}
			w := newWorld(t, changes...)
			p := w.call()
			if tc.do != nil {
				tc.do(w, p)
			}
			assert.Equal(t, tc.want, p.hasOthers("a"))
		})
	}
}

// prompt reads a request and its prompt.
func (w *world) prompt(t testing.TB, path, body string, change func(*endpick.Request)) (*Call, *dialect.Call, error) {
	p := &Call{d: w.Dispatcher}
	require.NoError(t, p.read(Incoming{Method: "POST", Path: path, Header: http.Header{}, Body: []byte(body)}))
	if change != nil {
		change(&p.Request)
	}
	return p, p.parsed, p.prompt(t.Context())
}

func TestPrompt(t *testing.T) {
	w := newWorld(t)
	long := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("tell me more about it, ", 20) + `"}]}`
	excluded := append(make([]string, 0, 8), "a")
	p, call, err := w.prompt(t, "/v1/chat/completions", long, func(r *endpick.Request) { r.Exclude = excluded })
	require.NoError(t, err)
	assert.True(t, p.harmless)
	assert.Equal(t, "m", p.Request.Model)
	assert.NotEmpty(t, p.Request.Blocks)
	assert.Greater(t, p.Request.InputTokens, 100)
	assert.Nil(t, call.Request.Blocks, "they are the request's alone, to let go")
	assert.Equal(t, "b", w.asked(p), "what the host excludes")
	p.exclude = append(p.exclude, "b")
	assert.Equal(t, []string{"a", ""}, excluded[:2], "its list is its own")
	assert.Equal(t, "c", w.asked(p))

	p, _, err = w.prompt(t, "/v1/chat/completions", `{"messages":[{"role":"user","content":"Hi!"}]}`, nil)
	require.NoError(t, err)
	assert.True(t, p.harmless)
	p, _, err = w.prompt(t, "/v1/fine_tuning/jobs", `{"model":"m"}`, nil)
	require.NoError(t, err)
	assert.False(t, p.harmless)
	p, _, err = w.prompt(t, "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"Hi!"}]}`,
		func(r *endpick.Request) { r.Tenant = strings.Repeat("x", 300) })
	require.ErrorAs(t, err, new(*endpick.RequestError))
	assert.Equal(t, 300, len(p.Request.Tenant), "what was read so far is there to be told of")
}
