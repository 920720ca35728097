package choose_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/choose"
	"github.com/endpick/endpick/transport/internal/dialect"
	"github.com/endpick/endpick/transport/internal/health"
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
	choose.Desk
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
	var err error
	w.Router, err = endpick.New(endpick.Config{
		Policy:    endpick.Policy{Scorers: []endpick.Weighted{{Scorer: first{}, Weight: 1}}, Admitters: []endpick.Admitter{&w.sheds}},
		Endpoints: endpoints, Clock: func() time.Time { return w.at },
	})
	require.NoError(t, err)
	w.Reader, err = dialect.NewReader(dialect.Config{})
	require.NoError(t, err)
	w.Clock = func() time.Time { return w.at }
	w.Health = health.New(w.Router, w.Clock)
	w.Budget = choose.NewBudget(0, 10)
	w.MaxAttempts = 3
	return w
}

// trip returns one that may be sent twice.
func (w *world) trip() *choose.Trip {
	return &choose.Trip{Desk: &w.Desk, Method: "POST", Inert: true, Request: endpick.Request{Model: "m"}}
}

// visit sends a request to an endpoint.
func (w *world) visit(t testing.TB, id string) health.Visit {
	ref, ok := w.Router.Ref(id)
	require.True(t, ok)
	return w.Health.Sent(id, ref)
}

// remove removes an endpoint that has a request in flight, so that it is still listed.
func (w *world) remove(t testing.TB, id string) {
	_, err := (&choose.Trip{Desk: &w.Desk}).Adopt(id)
	require.NoError(t, err)
	require.NoError(t, w.Router.Remove(id))
	require.Len(t, w.Router.Endpoints(), 3)
}

// asked is where a trip goes now: an ID, or an error.
func (w *world) asked(trip *choose.Trip) string {
	lease, err := trip.Route()
	if err != nil {
		return err.Error()
	}
	defer lease.Done(endpick.Outcome{Status: endpick.Canceled})
	return lease.Endpoint().ID
}

// out puts an endpoint out.
func (w *world) out(t testing.TB, id string, err error) {
	for range 3 {
		w.Health.Failed(w.visit(t, id).Because(err), true)
	}
	require.True(t, w.Health.IsOut(id))
}

func TestKinds(t *testing.T) {
	for kind, statuses := range map[choose.Kind][]int{
		choose.Refusal: {400, 401, 404, 408, 413, 428, 430, 451, 499, 501, 505},
		choose.Full:    {429},
		choose.Erred:   {500, 502, 503, 504, 506, 529, 599},
	} {
		for _, status := range statuses {
			assert.Equal(t, kind, choose.KindOf(status), status)
		}
	}
	assert.Equal(t, "answered 503 Service Unavailable", choose.StatusError(503).Error())
	assert.Contains(t, choose.ErrFirstEvent.Error(), "error event")
	dial := &net.OpError{Op: "dial", Err: errors.New("refused")}
	assert.True(t, choose.IsDial(fmt.Errorf("wrapped: %w", dial)))
	assert.False(t, choose.IsDial(&net.OpError{Op: "read", Err: dial.Err}))
	assert.False(t, choose.IsDial(nil))
}

func TestWhatEndpointsAreTold(t *testing.T) {
	for _, tc := range []struct {
		metered bool
		e       endpick.Endpoint
		want    http.Header
	}{
		{false, endpick.Endpoint{Rank: 2}, http.Header{"Accept-Encoding": {"br"}}},
		{true, endpick.Endpoint{}, http.Header{"Accept-Encoding": {"identity"}}},
		{false, endpick.Endpoint{Ranked: true}, http.Header{"Accept-Encoding": {"br"}, "X-Data-Parallel-Rank": {"0"}}},
		{true, endpick.Endpoint{Ranked: true, Rank: 12}, http.Header{"Accept-Encoding": {"identity"}, "X-Data-Parallel-Rank": {"12"}}},
	} {
		h := http.Header{"Accept-Encoding": {"br"}}
		choose.SetHeader(h, tc.metered, &tc.e)
		assert.Equal(t, tc.want, h)
	}
}

func TestRepeatable(t *testing.T) {
	for method, want := range map[string]bool{
		"GET": true, "HEAD": true, "OPTIONS": true, "TRACE": true, "": true,
		"POST": false, "PUT": false, "PATCH": false, "DELETE": false, "get": false,
	} {
		assert.Equal(t, want, (&choose.Trip{Method: method}).Repeatable(), method)
		assert.True(t, (&choose.Trip{Method: method, Inert: true}).Repeatable(), method)
	}
}

// Which endpoint is next after a failure of each kind, and what that costs.
func TestAgain(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tc := range []struct {
		name     string
		kind     choose.Kind
		change   func(w *world, trip *choose.Trip)
		ctx      context.Context
		paid     bool
		want     bool
		left     int // of a budget of two
		turnedBy uint64
	}{
		{name: "erred", kind: choose.Erred, want: true, left: 1},
		{name: "broken", kind: choose.Broken, want: true, left: 1},
		{name: "full", kind: choose.Full, want: true, left: 1},
		{name: "paid", kind: choose.Erred, paid: true, want: true, left: 2},
		{name: "unreachable", kind: choose.Unreachable, want: true, left: 2},
		{name: "unreachable, which may not be repeated", kind: choose.Unreachable, want: true, left: 2,
			change: func(_ *world, trip *choose.Trip) { trip.Inert = false }},
		{name: "full, which may not be repeated", kind: choose.Full, want: true, left: 1, change: func(_ *world, trip *choose.Trip) { trip.Inert = false }},
		{name: "broken, which may not be repeated", kind: choose.Broken, left: 2, change: func(_ *world, trip *choose.Trip) { trip.Inert = false }},
		{name: "may not be repeated", kind: choose.Erred, left: 2, change: func(_ *world, trip *choose.Trip) { trip.Inert = false }},
		{name: "the client has gone", kind: choose.Unreachable, ctx: gone, left: 2},
		{name: "the last attempt", kind: choose.Unreachable, left: 2, change: func(_ *world, trip *choose.Trip) { trip.Attempts = 3 }},
		{name: "one before", kind: choose.Erred, want: true, left: 1, change: func(_ *world, trip *choose.Trip) { trip.Attempts = 2 }},
		{name: "no budget", kind: choose.Erred, turnedBy: 1, change: func(w *world, _ *choose.Trip) {
			w.Budget.Retry(w.at)
			w.Budget.Retry(w.at)
		}},
		{name: "no budget, and paid", kind: choose.Erred, paid: true, want: true, change: func(w *world, _ *choose.Trip) {
			w.Budget.Retry(w.at)
			w.Budget.Retry(w.at)
		}},
		{name: "a refusal", kind: choose.Refusal, left: 2},
		{name: "a second refusal", kind: choose.Refusal, want: true, left: 2, change: func(w *world, _ *choose.Trip) {
			w.Health.Refused(w.visit(t, "a"))
		}},
		{name: "a second refusal, which may not be repeated", kind: choose.Refusal, left: 2, change: func(w *world, trip *choose.Trip) {
			w.Health.Refused(w.visit(t, "a"))
			trip.Inert = false
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			w.Budget = choose.NewBudget(0, 2)
			trip := w.trip()
			trip.Attempts = 1
			if tc.change != nil {
				tc.change(w, trip)
			}
			ctx := tc.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			assert.Equal(t, tc.want, trip.Again(ctx, w.visit(t, "a"), tc.kind, tc.paid))
			assert.Equal(t, tc.turnedBy, w.Denied.Load())
			left := 0
			for w.Budget.Retry(w.at) {
				left++
			}
			assert.Equal(t, tc.left, left)
		})
	}
}

// A tenth of the burst comes back each second.
func TestBudget(t *testing.T) {
	b := choose.NewBudget(0.5, 20)
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
func TestJudge(t *testing.T) {
	for _, tc := range []struct {
		name      string
		kinds     []choose.Kind // of each request, at a and then at b
		served    bool          // by any endpoint, in the end
		change    func(*choose.Trip)
		unhealthy string
		why       health.Reason
	}{
		{name: "another has served it", kinds: []choose.Kind{choose.Erred}, served: true, unhealthy: "a", why: health.Failing},
		{name: "broken off, another has served it", kinds: []choose.Kind{choose.Broken}, served: true, unhealthy: "a", why: health.Failing},
		{name: "refused, another has served it", kinds: []choose.Kind{choose.Refusal}, served: true, unhealthy: "a", why: health.Failing},
		{name: "two have failed it, so that neither stands out", kinds: []choose.Kind{choose.Erred, choose.Broken}, served: true},
		{name: "nobody has served it", kinds: []choose.Kind{choose.Erred}},
		{name: "both have failed it", kinds: []choose.Kind{choose.Erred, choose.Erred}},
		{name: "nobody else was to be asked", kinds: []choose.Kind{choose.Erred}, change: func(trip *choose.Trip) { trip.Alone = true }, unhealthy: "a", why: health.Failing},
		{name: "nobody else could be asked", kinds: []choose.Kind{choose.Erred}, change: func(trip *choose.Trip) { trip.Inert = false }, unhealthy: "a", why: health.Failing},
		{name: "refused, which may not be repeated", kinds: []choose.Kind{choose.Refusal}, change: func(trip *choose.Trip) { trip.Inert = false }},
		{name: "unreachable", kinds: []choose.Kind{choose.Unreachable}, unhealthy: "a", why: health.Unreachable},
		{name: "full", kinds: []choose.Kind{choose.Full}, served: true},
		{name: "full, alone", kinds: []choose.Kind{choose.Full}, change: func(trip *choose.Trip) { trip.Alone = true }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			for range 3 {
				trip := w.trip()
				if tc.change != nil {
					tc.change(trip)
				}
				for i, kind := range tc.kinds {
					trip.Failed(w.visit(t, []string{"a", "b"}[i]), kind)
				}
				trip.Judge(tc.served)
				trip.Judge(true) // failures are judged only once
			}
			var unhealthy []string
			for _, id := range []string{"a", "b", "c"} {
				if w.Health.IsOut(id) {
					unhealthy = append(unhealthy, id)
				}
			}
			assert.Equal(t, tc.unhealthy, strings.Join(unhealthy, " "))
			if tc.why != health.Fine {
				ref, _ := w.Router.Ref("a")
				assert.Equal(t, tc.why, w.Health.Status("a", ref).Reason)
			}
		})
	}
}

// A single failed attempt of a request that is given up is not counted against its
// endpoint, then or later.
func TestAFailureIsJudgedOnce(t *testing.T) {
	w := newWorld(t)
	trip := w.trip()
	for range 3 {
		trip.Failed(w.visit(t, "a"), choose.Erred)
		trip.Judge(false)
		trip.Judge(true)
	}
	assert.False(t, w.Health.IsOut("a"))
}

// A trial that fails with a request that every endpoint fails is followed by the next.
func TestATrialOfWhatEverybodyFails(t *testing.T) {
	for _, tc := range []struct{ both, served, next bool }{{true, false, true}, {false, false, false}, {true, true, false}} {
		w := newWorld(t)
		w.out(t, "a", nil)
		w.at = w.at.Add(time.Second)
		trip := w.trip()
		trip.Failed(w.visit(t, "a"), choose.Erred)
		if tc.both {
			trip.Failed(w.visit(t, "b"), choose.Erred)
		}
		trip.Judge(tc.served)
		ref, _ := w.Router.Ref("a")
		assert.Equal(t, tc.next, !w.Health.Status("a", ref).NextTrial.After(w.at), tc)
	}
}

// Full endpoints are spared for a moment.
func TestFull(t *testing.T) {
	w := newWorld(t)
	w.trip().Failed(w.visit(t, "a"), choose.Full)
	assert.Equal(t, "b", w.asked(w.trip()))
	w.at = w.at.Add(time.Second)
	assert.Equal(t, "a", w.asked(w.trip()))
}

func TestRoute(t *testing.T) {
	w := newWorld(t)
	trip := w.trip()
	assert.Equal(t, "a", w.asked(trip))
	trip.Exclude("a")
	assert.Equal(t, "b", w.asked(trip))
	w.out(t, "b", nil)
	assert.Equal(t, "c", w.asked(trip), "who is out is avoided")
	assert.Equal(t, "a", w.asked(w.trip()))
	trip.Exclude("c")
	assert.Equal(t, "b", w.asked(trip), "but asked where there is nobody else")
	trip.Exclude("b")
	var none *endpick.NoEndpointsError
	_, err := trip.Route()
	require.ErrorAs(t, err, &none)
	assert.Equal(t, 3, none.Excluded)
}

// An endpoint that takes long to fail is not asked even if it is the only one, as
// long as it stays that way.
func TestRouteInVain(t *testing.T) {
	w := newWorld(t)
	w.out(t, "a", timeout{errors.New("no route")})
	trip := w.trip()
	trip.Exclude("b", "c")
	_, err := trip.Route()
	require.ErrorIs(t, err, endpick.ErrNoEndpoints)
	assert.ErrorContains(t, err, "3 excluded, 0 draining; endpoints that are unhealthy and do not answer: 1")
	w.at = w.at.Add(time.Second)
	assert.Equal(t, "a", w.asked(trip), "its trial")
}

// An endpoint chosen by another party gets its accounts, whatever state it is in.
func TestAdopt(t *testing.T) {
	w := newWorld(t)
	w.out(t, "b", nil)
	w.sheds.on = true
	trip := w.trip()
	trip.Exclude("b")
	trip.Request.Receipt = new(endpick.Receipt)
	trip.Request.Receipt.Chosen = -7
	lease, err := trip.Adopt("b")
	require.NoError(t, err)
	assert.Equal(t, "b", lease.Endpoint().ID)
	assert.Equal(t, 1, w.Router.Stats().OpenLeases)
	assert.Equal(t, -7, trip.Request.Receipt.Chosen, "it tells of a choice, and this is none")
	lease.Done(endpick.Outcome{})
	assert.Zero(t, w.Router.Stats().OpenLeases)

	w.remove(t, "c")
	for _, id := range []string{"x", "c", ""} {
		_, err = trip.Adopt(id)
		require.ErrorIs(t, err, endpick.ErrUnknownEndpoint, id)
	}
	w.sheds.on = false
	assert.Equal(t, "a", w.asked(trip), "it has no say in the next choice")
}

func TestHasOthers(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func([]endpick.Endpoint)
		do     func(w *world, trip *choose.Trip)
		want   bool
	}{
		{name: "yes", want: true},
		{name: "of other models", change: func(e []endpick.Endpoint) { e[1].Models, e[2].Adapters = []string{"x"}, []string{"y"} }},
		{name: "one of its model", change: func(e []endpick.Endpoint) { e[1].Models, e[2].Models = []string{"x"}, []string{"x", "m"} }, want: true},
		{name: "one with its adapter", change: func(e []endpick.Endpoint) {
			e[1].Models, e[2].Models, e[2].Adapters = []string{"m"}, []string{"m"}, []string{"l"}
		},
			do: func(_ *world, trip *choose.Trip) { trip.Request.Adapter = "l" }, want: true},
		{name: "none with its adapter", change: func(e []endpick.Endpoint) { e[1].Models, e[2].Models = []string{"m"}, []string{"m"} },
			do: func(_ *world, trip *choose.Trip) { trip.Request.Adapter = "l" }},
		{name: "no model asked for", change: func(e []endpick.Endpoint) { e[1].Models, e[2].Models = []string{"x"}, []string{"x"} },
			do: func(_ *world, trip *choose.Trip) { trip.Request.Model = "" }, want: true},
		{name: "excluded", do: func(_ *world, trip *choose.Trip) { trip.Exclude("b", "c") }},
		{name: "one excluded", do: func(_ *world, trip *choose.Trip) { trip.Exclude("b") }, want: true},
		{name: "out and removed", do: func(w *world, _ *choose.Trip) {
			w.out(t, "b", nil)
			w.remove(t, "c")
		}},
		{name: "draining", do: func(w *world, _ *choose.Trip) {
			_ = w.Router.Drain("b")
			_ = w.Router.Drain("c")
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var changes []func([]endpick.Endpoint)
			if tc.change != nil {
				changes = append(changes, tc.change)
			}
			w := newWorld(t, changes...)
			trip := w.trip()
			if tc.do != nil {
				tc.do(w, trip)
			}
			assert.Equal(t, tc.want, trip.HasOthers("a"))
		})
	}
}

// read returns a call read by the desk's reader, whose prompt is read during a trip.
func (w *world) read(t testing.TB, path, body string, change func(*endpick.Request)) (*choose.Trip, *dialect.Call, error) {
	call, err := w.Reader.Read(dialect.Incoming{Method: "POST", Path: path, Header: http.Header{}, Body: []byte(body)})
	require.NoError(t, err)
	if change != nil {
		change(&call.Request)
	}
	trip := &choose.Trip{Desk: &w.Desk, Method: "POST"}
	return trip, call, trip.Prompt(t.Context(), call)
}

func TestPrompt(t *testing.T) {
	w := newWorld(t)
	long := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("tell me more about it, ", 20) + `"}]}`
	excluded := append(make([]string, 0, 8), "a")
	trip, call, err := w.read(t, "/v1/chat/completions", long, func(r *endpick.Request) { r.Exclude = excluded })
	require.NoError(t, err)
	assert.True(t, trip.Inert)
	assert.Equal(t, "m", trip.Request.Model)
	assert.NotEmpty(t, trip.Request.Blocks)
	assert.Greater(t, trip.Request.InputTokens, 100)
	assert.Nil(t, call.Request.Blocks, "they are the trip's alone, to let go")
	assert.Equal(t, "b", w.asked(trip), "what the host excludes")
	trip.Exclude("b")
	assert.Equal(t, []string{"a", ""}, excluded[:2], "its list is its own")
	assert.Equal(t, "c", w.asked(trip))

	trip, _, err = w.read(t, "/v1/chat/completions", `{"messages":[{"role":"user","content":"Hi!"}]}`, nil)
	require.NoError(t, err)
	assert.True(t, trip.Inert)
	trip, _, err = w.read(t, "/v1/fine_tuning/jobs", `{"model":"m"}`, nil)
	require.NoError(t, err)
	assert.False(t, trip.Inert)
	trip, _, err = w.read(t, "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"Hi!"}]}`,
		func(r *endpick.Request) { r.Tenant = strings.Repeat("x", 300) })
	require.ErrorIs(t, err, endpick.ErrBadRequest)
	assert.Equal(t, 300, len(trip.Request.Tenant), "what was read so far is there to be told of")
}

// A request goes to the endpoint that holds what it refers to, as long as that endpoint is
// there.
func TestWhatIsReferredTo(t *testing.T) {
	w := newWorld(t)
	trip, call, err := w.read(t, "/v1/responses", `{"model":"m","input":"Hi!"}`, nil)
	require.NoError(t, err)
	trip.Exclude("a", "b")
	lease, err := trip.Route()
	require.NoError(t, err)
	require.Equal(t, "c", lease.Endpoint().ID)
	_ = call.Body()
	meter := call.Meter(lease, w.Clock)
	meter.Header(200, http.Header{"Content-Type": {"application/json"}})
	meter.Feed(nil, []byte(`{"id":"resp_1","object":"response","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Hello!"}]}],"usage":{"input_tokens":3,"output_tokens":2}}`))
	lease.Done(meter.Outcome(endpick.Completed))

	next := `{"model":"m","previous_response_id":"resp_1","input":"And?"}`
	trip, _, err = w.read(t, "/v1/responses", next, func(r *endpick.Request) { r.Exclude = []string{"b"} })
	require.NoError(t, err)
	assert.Equal(t, "c", w.asked(trip))
	assert.False(t, trip.HasOthers("c"))
	other, _, err := w.read(t, "/v1/responses", strings.Replace(next, "resp_1", "resp_2", 1), nil)
	require.NoError(t, err)
	assert.Equal(t, "a", w.asked(other), "nobody is known to have that one")

	w.remove(t, "c")
	trip, _, err = w.read(t, "/v1/responses", next, func(r *endpick.Request) { r.Exclude = []string{"a"} })
	require.NoError(t, err)
	assert.Equal(t, "b", w.asked(trip), "any can say that it has no such thing")

	// It comes back, in the place of another, while a request to it is still open.
	require.NoError(t, w.Router.Remove("a"))
	require.NoError(t, w.Router.Add(endpick.Endpoint{ID: "c"}))
	trip, _, err = w.read(t, "/v1/responses", next, nil)
	require.NoError(t, err)
	assert.Equal(t, "c", w.asked(trip))
}

// The order of failures whose requests are judged at once does not matter.
func TestJudgeInAnyOrder(t *testing.T) {
	w := newWorld(t)
	trips := []*choose.Trip{w.trip(), w.trip(), w.trip()}
	for _, trip := range trips {
		trip.Failed(w.visit(t, "b"), choose.Erred)
	}
	slices.Reverse(trips)
	for i, trip := range trips {
		assert.False(t, w.Health.IsOut("b"), i)
		trip.Judge(true)
	}
	assert.True(t, w.Health.IsOut("b"))
}
