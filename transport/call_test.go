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

// timeout is the error of a wait that timed out.
type timeout struct{ error }

func (timeout) Timeout() bool { return true }

type world struct {
	*Dispatcher
	at time.Time
}

// newWorld has endpoints a, b and c, which serve any model unless changed.
func newWorld(t testing.TB, change ...func([]endpick.Endpoint)) *world {
	w := &world{at: time.Unix(1000, 0)}
	endpoints := []endpick.Endpoint{{ID: "a"}, {ID: "b"}, {ID: "c"}}
	for _, f := range change {
		f(endpoints)
	}
	router, err := endpick.New(endpick.Config{
		Policy:    endpick.Policy{Scorers: []endpick.Weighted{{Scorer: first{}, Weight: 1}}},
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
	for i, want := range []int{20, 2} {
		at = at.Add(time.Duration(i) * time.Second)
		got := 0
		for b.Retry(at) {
			got++
		}
		assert.Equal(t, want, got)
	}
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
			assert.Equal(t, tc.want, len(p.others("a")) > 0)
		})
	}
}

// The blocks of a prompt are the request's alone, which lets go of them when it is answered.
func TestBlocksAreHeldOnce(t *testing.T) {
	p := &Call{d: newWorld(t).Dispatcher}
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("tell me more about it, ", 20) + `"}]}`
	require.NoError(t, p.read(Incoming{Method: "POST", Path: "/v1/chat/completions", Header: http.Header{}, Body: []byte(body)}))
	require.NoError(t, p.prompt(t.Context()))
	assert.NotEmpty(t, p.Request.Blocks)
	assert.Nil(t, p.parsed.Request.Blocks)
}

// What a request has taken of the room for what may be resumed, it gives back, once.
func TestWhatWasSavedIsGivenBack(t *testing.T) {
	c := newWorld(t).call()
	c.t, c.saved = new(Transport), 7
	c.t.saved.Add(10)
	c.drop()
	c.drop()
	assert.EqualValues(t, 3, c.t.saved.Load())
}
