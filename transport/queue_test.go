package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/slo"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// gated is an engine that holds each request until one is released.
type gated struct {
	*engine
	arrived chan string // names in the order of arrival
	release chan struct{}
	then    func(w http.ResponseWriter, name string) bool // answers, or returns false; nil: never
}

func startGated(t *testing.T) *gated {
	g := &gated{arrived: make(chan string, 100), release: make(chan struct{}, 100)}
	g.engine = startEngine(t, func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		name := r.Header.Get("X-Name")
		g.arrived <- name
		select {
		case <-g.release:
		case <-r.Context().Done():
		}
		return g.then != nil && g.then(w, name)
	})
	return g
}

// next is the name of who arrives next.
func (g *gated) next() string {
	select {
	case name := <-g.arrived:
		return name
	case <-time.After(10 * time.Second):
		return "nobody"
	}
}

// one holds everything beyond one request per endpoint.
func one(bounds queue.Config) *transport.QueueConfig {
	return &transport.QueueConfig{Bounds: bounds, Saturation: queue.Concurrency(1)}
}

type reply struct {
	resp *http.Response
	err  error
}

// later sends a request in the background.
func (w *world) later(t *testing.T, ctx context.Context, name string, headers ...string) chan reply {
	return w.sent(t, post(t, chatPath, chatStream, append(headers, "X-Name", name)...).WithContext(ctx))
}

func (w *world) sent(t *testing.T, req *http.Request) chan reply {
	done := make(chan reply, 1)
	go func() {
		resp, _, err := w.do(t, req)
		done <- reply{resp, err}
	}()
	return done
}

// first sends a request that keeps a gated engine busy.
func (w *world) first(t *testing.T, ctx context.Context, g *gated) chan reply {
	t.Helper()
	done := w.later(t, ctx, "first")
	require.Equal(t, "first", g.next())
	return done
}

func (w *world) held(t *testing.T, n int) transport.QueueStatus {
	t.Helper()
	require.Eventually(t, func() bool {
		q, ok := w.t.Queue()
		return ok && q.Requests == n
	}, 10*time.Second, time.Millisecond)
	q, _ := w.t.Queue()
	return q
}

// saturation is how full candidates are.
type saturation func([]endpick.Candidate) float64

func (s saturation) Saturation(candidates []endpick.Candidate) float64 { return s(candidates) }

// scores is a scorer.
type scores func(req *endpick.Request, candidates []endpick.Candidate, dst []float64)

func (s scores) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	s(req, candidates, dst)
}

// endings is a stage that is slow to handle the end of a request and records the
// targets of routed ones.
type endings struct {
	takes   time.Duration
	targets []time.Duration
}

func (e *endings) Done(*endpick.Event, *endpick.Outcome) { time.Sleep(e.takes) }

func (e *endings) Filter(req *endpick.Request, c []endpick.Candidate) []endpick.Candidate {
	e.targets = append(e.targets, req.SLO.TTFT)
	return c
}

// The end of a request makes room at once, not only when the endpoints are polled,
// and however long observers take.
func TestTheEndOfARequestMovesTheQueueOn(t *testing.T) {
	const takes, end = 1003 * time.Millisecond, time.Millisecond
	bubble(t, transport.Config{Queue: one(queue.Config{})}, endpick.Config{}, speak("application/json", []time.Duration{takes}, "{}"), func(t *testing.T, w *world) {
		require.NoError(t, w.router.SetPolicy(endpick.Policy{Filters: []endpick.Filter{&endings{takes: end}}}))
		start := time.Now()
		var all []chan reply
		for i := range 5 {
			all = append(all, w.later(t, t.Context(), strconv.Itoa(i)))
		}
		for _, c := range all {
			require.NoError(t, (<-c).err)
		}
		assert.Equal(t, 5*(takes+end), time.Since(start))
	})
}

// Only the time in the queue is subtracted from a target, not the time that the client
// takes to send its request, which doesn't give it an earlier deadline either. One that has passed still counts as set.
func TestOnlyTheQueueTakesFromATarget(t *testing.T) {
	const takes = 3 * time.Second
	var o *transport.Observation
	config := transport.Config{Queue: one(queue.Config{}), Observe: func(last *transport.Observation) { o = last }}
	bubble(t, config, endpick.Config{}, speak("application/json", []time.Duration{takes}, "{}"), func(t *testing.T, w *world) {
		stage := &endings{}
		require.NoError(t, w.router.SetPolicy(endpick.Policy{Filters: []endpick.Filter{stage}}))
		first := w.later(t, t.Context(), "first")
		synctest.Wait()
		late := func(by time.Duration, target string) *http.Request {
			req := post(t, chatPath, chatStream, "X-Slo-Ttft-Ms", target)
			pause := rig.Reader(func([]byte) (int, error) { time.Sleep(by); return 0, io.EOF })
			req.Body = io.NopCloser(io.MultiReader(pause, strings.NewReader(chatStream)))
			return req
		}
		second := w.sent(t, late(time.Second, "10500"))
		third := w.sent(t, late(6500*time.Millisecond, "100"))
		w.ok(t, late(2*time.Second, "10000"))
		for _, c := range []chan reply{first, second, third} {
			require.NoError(t, (<-c).err)
		}
		assert.Equal(t, []time.Duration{0, 8500 * time.Millisecond, 6 * time.Second, 1}, stage.targets)
		assert.Equal(t, []any{100.0, 2500 * time.Millisecond, time.Duration(0)}, []any{o.SLOTTFTMillis, o.Held, o.Last().Decision})
	})
}

// A request that waits for room, and again after an attempt has failed: both waits are subtracted from its
// target, however often it was tried and as which model, its first arrival counts, and its tenant pays once.
func TestWaitingTwice(t *testing.T) {
	var w *world
	held := make(chan time.Duration, 2)
	config := transport.Config{
		Describe: team, Observe: func(o *transport.Observation) { held <- o.Held },
		Names: map[string]transport.Name{"m": {Models: []string{"x", "y"}}},
	}
	handler := func(out http.ResponseWriter, r *http.Request) {
		if time.Sleep(time.Second); r.Host == "a:1" {
			assert.NoError(t, w.router.Drain("a"))
			out.WriteHeader(500)
		}
	}
	bubble(t, config, endpick.Config{}, handler, func(t *testing.T, world *world) {
		w = world
		w.add(t, "b", "b:1")
		w.limited(t, func(e *endpick.Endpoint) { e.MaxInFlight = 1 })
		busy := []endpick.Lease{rig.Must(w.router.Route(endpick.Request{})), rig.Must(w.router.Route(endpick.Request{}))}
		red := w.sent(t, post(t, chatPath, chatAtOnce, "X-Team", "red", slo.TTFTHeader, "10000"))
		blue := w.sent(t, post(t, chatPath, chatAtOnce, "X-Team", "blue", slo.TTFTHeader, "10500"))
		time.Sleep(995 * time.Millisecond) // before the endpoints are checked
		busy[0].Done(endpick.Outcome{})
		time.Sleep(2 * time.Second)
		busy[1].Done(endpick.Outcome{})
		require.NoError(t, (<-red).err)
		require.NoError(t, (<-blue).err)
		assert.Equal(t, []time.Duration{2 * time.Second, 4 * time.Second}, []time.Duration{<-held, <-held})
		var routed []any
		for _, r := range w.observer.requests[len(busy):] {
			routed = append(routed, r.Tenant, r.SLO.TTFT)
		}
		assert.Equal(t, []any{"red", 9 * time.Second, "red", 8 * time.Second, "blue", 6500 * time.Millisecond}, routed)
	})
}

// Turns are charged what requests really used: where red's first answer was long, or its prompt, blue's
// second goes before red's, which arrived earlier. What fails before its first token costs nothing, however
// long its prompt was, so that red's second passes blue's; what fails after that still costs its prompt,
// which was computed.
func TestHeldTenantsPayForTheirAnswers(t *testing.T) {
	word, redFirst, blueFirst := delta(`"content":"word"`), []string{"red 2", "blue 2"}, []string{"blue 2", "red 2"}
	usage := func(used string) handler {
		return sse(word + `data: {"choices":[],"usage":{` + used + `}}` + "\n\n" + done)
	}
	for _, tc := range []struct {
		name   string
		answer handler  // to red's first
		input  int      // of red's first; 0: as estimated
		arrive []string // the last ones, and the order in which they are served
		served []string
	}{
		{"as estimated", nil, 0, redFirst, redFirst},
		{"a long answer", usage(`"prompt_tokens":100,"completion_tokens":5000`), 0, redFirst, blueFirst},
		{"a long prompt", usage(`"prompt_tokens":10000,"completion_tokens":4`), 0, redFirst, blueFirst},
		{"an error", status(500), 5000, blueFirst, redFirst},
		{"a refusal", status(400), 5000, blueFirst, redFirst},
		{"fails in the middle", sse(word + "data: {\"error\":{\"message\":\"out of memory\"}}\n\n"), 5000, redFirst, blueFirst},
	} {
		g := startGated(t)
		g.then = func(w http.ResponseWriter, name string) bool {
			return tc.answer != nil && name == "red 1" && tc.answer(w, nil, nil)
		}
		w := newWorld(t, transport.Config{
			Queue: one(queue.Config{}), MaxAttempts: 1,
			Describe: func(in *http.Request, _ []byte, req *endpick.Request) {
				req.Tenant, req.ExpectedOutputTokens = in.Header.Get("X-Team"), 4
				if tc.input > 0 {
					req.InputTokens = 10
					if in.Header.Get("X-Name") == "red 1" {
						req.InputTokens = tc.input
					}
				}
			},
		}, g.URL)
		order := w.dispatched(t, g, append([]string{"first", "red 1", "blue 1"}, tc.arrive...)...)
		assert.Equal(t, append([]string{"red 1", "blue 1"}, tc.served...), order, tc.name)
	}
}

// atEnd calls do when the first request of red ends.
type atEnd struct {
	once sync.Once
	do   func()
}

func (*atEnd) Match(*endpick.Request, []endpick.Candidate) {}

func (a *atEnd) Done(e *endpick.Event, _ *endpick.Outcome) {
	if e.Request.Tenant == "red" {
		a.once.Do(a.do)
	}
}

// A request is charged what it has taken before its place is given away: even one that
// gets a turn while the request is still ending is not red's second.
func TestHeldTenantsPayBeforeTheNextTurn(t *testing.T) {
	g := startGated(t)
	g.then = func(w http.ResponseWriter, name string) bool {
		return name == "red 1" &&
			sse(delta(`"content":"word"`)+`data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":5000}}`+"\n\n"+done)(w, nil, nil)
	}
	var places atomic.Int64
	places.Store(1)
	full := saturation(func(cs []endpick.Candidate) float64 {
		return float64(cs[0].InFlight.Requests) / float64(places.Load())
	})
	w := newWorld(t, transport.Config{
		Queue: &transport.QueueConfig{Saturation: full},
		Describe: func(in *http.Request, _ []byte, req *endpick.Request) {
			req.Tenant, req.InputTokens, req.ExpectedOutputTokens = in.Header.Get("X-Team"), 100, 4
		},
	}, g.URL)
	next := make(chan string, 1)
	require.NoError(t, w.router.SetPolicy(endpick.Policy{Matcher: &atEnd{do: func() {
		places.Add(1)
		next <- g.next()
	}}}))
	var replies []chan reply
	names := []string{"first", "blue 1", "red 1", "red 2", "blue 2"}
	for i, name := range names {
		replies = append(replies, w.later(t, t.Context(), name, "X-Team", strings.Fields(name)[0]))
		w.held(t, i)
		if i == 0 {
			require.Equal(t, name, g.next())
		}
	}
	for i, name := range names[1:3] {
		g.release <- struct{}{}
		require.NoError(t, (<-replies[i]).err)
		require.Equal(t, name, g.next())
	}
	g.release <- struct{}{}
	assert.Equal(t, "blue 2", <-next)
	close(g.release)
	for _, r := range replies[2:] {
		require.NoError(t, (<-r).err)
	}
	w.idle(t)
}

// dispatched sends requests of the teams that begin their names to an engine that
// serves one at a time, and returns the order in which it received those after the
// first.
func (w *world) dispatched(t *testing.T, g *gated, names ...string) (order []string) {
	t.Helper()
	replies := map[string]chan reply{}
	for i, name := range names {
		replies[name] = w.later(t, t.Context(), name, "X-Team", strings.Fields(name)[0])
		w.held(t, i)
		if i == 0 {
			require.Equal(t, name, g.next())
		}
	}
	// What a request has taken is known when its client has been answered; the one that
	// follows it may be on its way before.
	at := names[0]
	for range names[1:] {
		g.release <- struct{}{}
		require.NoError(t, (<-replies[at]).err)
		at = g.next()
		order = append(order, at)
	}
	g.release <- struct{}{}
	require.NoError(t, (<-replies[at]).err)
	w.idle(t)
	return order
}

// choosy refuses sessions named no.
type choosy struct{}

func (choosy) Admit(req *endpick.Request, _ []endpick.Candidate) error {
	if req.Session == "no" {
		return &slo.UnattainableError{}
	}
	return nil
}

// inVain sends a request that panics, or is refused, in the background.
func (w *world) inVain(t *testing.T, team, session string) chan any {
	req := post(t, chatPath, chatStream, "X-Team", team, transport.SessionHeader, session)
	ended := make(chan any, 1)
	go func() {
		defer func() { ended <- recover() }()
		_, err := w.t.RoundTrip(req)
		panic(err)
	}()
	return ended
}

func team(in *http.Request, _ []byte, req *endpick.Request) { req.Tenant = in.Header.Get("X-Team") }

// A request that is not routed is charged to nobody, as the very next turn shows: red's other
// request has waited longer than blue's.
func TestWhatIsNotRoutedIsNotCharged(t *testing.T) {
	for session, says := range map[string]string{"bomb": "out of range", "no": "rejected"} {
		g := startGated(t)
		w := newWorld(t, transport.Config{Queue: one(queue.Config{}), Describe: team}, g.URL)
		require.NoError(t, w.router.SetPolicy(endpick.Policy{
			Matcher: w.observer, Admitters: []endpick.Admitter{choosy{}}, Scorers: []endpick.Weighted{{Scorer: scores(vandal), Weight: 1}},
		}))
		all := []chan reply{w.first(t, t.Context(), g)}
		vain := w.inVain(t, "red", session)
		w.held(t, 1)
		for i, name := range []string{"red", "blue"} {
			all = append(all, w.later(t, t.Context(), name, "X-Team", name))
			w.held(t, i+2)
		}
		g.release <- struct{}{}
		require.ErrorContains(t, (<-vain).(error), says)
		assert.Equal(t, "red", g.next(), session)
		g.release <- struct{}{}
		g.release <- struct{}{}
		for _, r := range all {
			require.NoError(t, (<-r).err)
		}
		w.idle(t)
	}
}

// bomber is a Base that panics on some requests.
type bomber struct{ http.RoundTripper }

func (b bomber) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get(transport.SessionHeader) == "bomb" {
		panic(errBroke)
	}
	return b.RoundTripper.RoundTrip(r)
}

// Nor is one that panics after that, however long others go on waiting.
func TestWhatPanicsIsNotCharged(t *testing.T) {
	g := startGated(t)
	w := newWorld(t, transport.Config{Queue: one(queue.Config{}), Describe: team, Base: bomber{new(http.Transport)}}, g.URL)
	var all []chan reply
	send := func(held int, team string) {
		all = append(all, w.later(t, t.Context(), team, "X-Team", team))
		w.held(t, held)
	}
	send(0, "first")
	require.Equal(t, "first", g.next())
	vain := w.inVain(t, "red", "bomb")
	w.held(t, 1)
	send(2, "green")
	send(3, "green")
	g.release <- struct{}{}
	require.Equal(t, errBroke, <-vain)
	assert.Equal(t, endpick.Failed, w.observer.all()[1].Status)
	require.Equal(t, "green", g.next())
	send(2, "red")
	send(3, "blue")
	for _, next := range []string{"red", "blue", "green"} {
		g.release <- struct{}{}
		assert.Equal(t, next, g.next())
	}
	g.release <- struct{}{}
	for _, r := range all {
		require.NoError(t, (<-r).err)
	}
	w.idle(t)
}

// A client that leaves while its request is being routed.
func TestClientThatLeavesAsItsTurnComes(t *testing.T) {
	g := startGated(t)
	w := newWorld(t, transport.Config{Queue: one(queue.Config{})}, g.URL)
	ctx, cancel := context.WithCancel(t.Context())
	leaves := scores(func(req *endpick.Request, _ []endpick.Candidate, dst []float64) {
		clear(dst)
		if req.Session == "leaves" {
			cancel()
			time.Sleep(20 * time.Millisecond) // lets the request notice; otherwise less is tested
		}
	})
	require.NoError(t, w.router.SetPolicy(endpick.Policy{Matcher: w.observer, Scorers: []endpick.Weighted{{Scorer: leaves, Weight: 1}}}))
	first := w.first(t, t.Context(), g)
	second := w.later(t, ctx, "second", transport.SessionHeader, "leaves")
	w.held(t, 1)
	g.release <- struct{}{}
	require.NoError(t, (<-first).err)
	require.ErrorIs(t, (<-second).err, context.Canceled)
	w.idle(t)
}

// Through a reverse proxy: what a client gets when the queue drops its request.
func TestDroppedFromTheQueue(t *testing.T) {
	g := startGated(t)
	w := newWorld(t, transport.Config{Queue: one(queue.Config{MaxRequests: 1, MaxBytes: 4096, Timeout: 1100 * time.Millisecond})}, g.URL)
	gateway := front(t, w)
	ask := func(body, priority string) (int, string, string) {
		req := rig.Must(http.NewRequest(http.MethodPost, gateway.URL+chatPath, strings.NewReader(body)))
		req.Header.Set(transport.PriorityHeader, priority)
		resp := rig.Must(http.DefaultClient.Do(req))
		defer resp.Body.Close()
		return resp.StatusCode, resp.Header.Get("Retry-After"), string(rig.Must(io.ReadAll(resp.Body)))
	}
	first := w.first(t, t.Context(), g)

	var group sync.WaitGroup
	group.Go(func() {
		code, retry, body := ask(chatStream, "-1")
		assert.Equal(t, 429, code)
		assert.Equal(t, "1", retry)
		assert.Contains(t, body, `"message":"all servers are busy, `)
		assert.Contains(t, body, `"type":"rate_limit_error"`)
	})
	w.held(t, 1)
	group.Go(func() { // replaces the sheddable one and waits in vain
		code, retry, body := ask(chatStream, "0")
		assert.Equal(t, 503, code)
		assert.Equal(t, "2", retry, "it has waited 1.1 s")
		assert.Contains(t, body, `"message":"no server had room for the request in time"`)
	})
	require.Eventually(t, func() bool { q, _ := w.t.Queue(); return q.Shed == 1 }, 30*time.Second, time.Millisecond)
	code, retry, body := ask(chatStream, "0")
	assert.Equal(t, 429, code)
	assert.Equal(t, "1", retry)
	assert.Contains(t, body, `"code":"rate_limit_exceeded"`)
	code, retry, _ = ask(`{"model":"m","prompt":"`+strings.Repeat("x", 5000)+`"}`, "0")
	assert.Equal(t, 413, code)
	assert.Empty(t, retry, "it won't fit later either")
	group.Wait()
	g.release <- struct{}{}
	require.NoError(t, (<-first).err)
	q, _ := w.t.Queue()
	assert.Equal(t, queue.Stats{Pushed: 3, Dispatched: 1, TimedOut: 1, Shed: 1, Refused: 2}, q.Stats)
	w.idle(t)
}

// vandal is a scorer that overwrites what it must not, which makes Route panic.
func vandal(req *endpick.Request, cs []endpick.Candidate, dst []float64) {
	clear(dst)
	if req.Session == "bomb" {
		for i := range cs {
			cs[i].Ref.Slot = 1 << 30
		}
	}
}

// Each of its blocks takes eight bytes, which are most of a request if its host cuts them short.
func TestTheQueueCountsBlocksInBytes(t *testing.T) {
	e := startEngine(t, nil)
	const blocks = 1 << 17
	w := newWorld(t, transport.Config{
		Queue:    &transport.QueueConfig{},
		Describe: func(_ *http.Request, _ []byte, req *endpick.Request) { req.Blocks = make([]uint64, 1, blocks) },
	}, e.URL)
	require.NoError(t, w.router.Report("a", endpick.Load{Waiting: 50}))
	w.later(t, t.Context(), "held")
	held := w.held(t, 1).Bytes
	assert.GreaterOrEqual(t, held, int64(8*blocks))
	assert.Less(t, held, int64(9*blocks))
	require.NoError(t, w.t.SetNames(map[string]transport.Name{"m": {Models: []string{"x", "y"}}}))
	w.later(t, t.Context(), "as it came, and for each model")
	assert.InDelta(t, 3*held, w.held(t, 2).Bytes-held, blocks)
}

// Saturation is also called from a timer, where nobody else would recover:
// after a panic, requests go on without it, as with a number that is none.
func TestSaturationThatPanicsIsRoom(t *testing.T) {
	e := startEngine(t, nil)
	var now atomic.Bool
	var panicked atomic.Int64
	full := saturation(func([]endpick.Candidate) float64 {
		if now.Load() {
			panicked.Add(1)
			panic("boom")
		}
		return 1
	})
	w := newWorld(t, transport.Config{Queue: &transport.QueueConfig{Saturation: full}}, e.URL)
	waiting := w.later(t, t.Context(), "x")
	w.held(t, 1)
	now.Store(true)
	require.NoError(t, (<-waiting).err)
	w.ok(t, post(t, chatPath, chatStream))
	q, _ := w.t.Queue()
	assert.Zero(t, q.Saturation)
	w.idle(t)
	unknown := saturation(func([]endpick.Candidate) float64 { return math.NaN() })
	newWorld(t, transport.Config{Queue: &transport.QueueConfig{Bounds: queue.Config{Timeout: time.Second}, Saturation: unknown}}, e.URL).ok(t, post(t, chatPath, chatStream))
	w.mu.Lock()
	defer w.mu.Unlock()
	var reported *endpick.PanicError
	require.Len(t, w.warnings, int(panicked.Load()))
	require.EqualValues(t, panicked.Load(), w.t.Stats().Panics)
	require.ErrorAs(t, w.warnings[0], &reported)
	assert.Equal(t, "boom", reported.Value)
	assert.Contains(t, string(reported.Stack), "queue_test.go")
}

func TestWhatIsNotHeld(t *testing.T) {
	e := startEngine(t, nil)
	w := newWorld(t, transport.Config{Queue: &transport.QueueConfig{}}, e.URL)
	require.NoError(t, w.router.Report("a", endpick.Load{Waiting: 50}))
	waiting := w.later(t, t.Context(), "x")
	w.held(t, 1)
	require.NoError(t, w.router.Drain("a"))
	require.ErrorAs(t, (<-waiting).err, new(*endpick.NoEndpointError), "nothing is left to wait for")
	_, _, err := w.do(t, post(t, chatPath, chatStream))
	require.ErrorAs(t, err, new(*endpick.NoEndpointError))

	require.NoError(t, w.router.Resume("a"))
	waiting = w.later(t, t.Context(), "y")
	w.held(t, 1)
	w.add(t, "b", e.URL)
	require.NoError(t, w.router.Report("b", endpick.Load{}))
	w.held(t, 1)
	require.NoError(t, w.router.Remove("a"))
	require.NoError(t, (<-waiting).err)

	_, ok := newWorld(t, transport.Config{}, e.URL).t.Queue()
	require.False(t, ok)
}

// However many endpoints are unhealthy, and in whatever order they became so. If all are, requests go
// to them as long as they have room.
func TestEndpointsInBadHealthAreNoRoom(t *testing.T) {
	g := startGated(t)
	w := newWorld(t, transport.Config{Queue: one(queue.Config{})})
	w.add(t, "z", g.URL)
	for _, id := range []string{"c", "b", "a"} {
		w.add(t, id, nobody())
		for range 3 {
			g.release <- struct{}{}
			w.ok(t, post(t, chatPath, chatStream))
			g.next()
		}
	}
	first := w.first(t, t.Context(), g)
	q, _ := w.t.Queue()
	assert.Equal(t, 1.0, q.Saturation)
	g.release <- struct{}{}
	require.NoError(t, (<-first).err)
	require.NoError(t, w.router.Remove("z"))
	rig.Must(w.router.Route(endpick.Request{Adopted: &endpick.Adopted{Endpoint: "a"}}))
	q, _ = w.t.Queue()
	assert.InDelta(t, 1.0/3, q.Saturation, 1e-9)
}

// A request that has been dispatched does not wait again after an endpoint fails it.
func TestRetryDoesNotWait(t *testing.T) {
	bad, good := startEngine(t, status(503)), startEngine(t, nil)
	var asked atomic.Int32 // there is room for one
	w := newWorld(t, transport.Config{Queue: &transport.QueueConfig{
		Saturation: saturation(func([]endpick.Candidate) float64 { return float64(min(asked.Add(1)-1, 1)) }),
		Bounds:     queue.Config{Timeout: 100 * time.Millisecond},
	}}, bad.URL, good.URL)
	w.ok(t, post(t, chatPath, chatStream))
	assert.EqualValues(t, 1, bad.requests.Load())
	assert.EqualValues(t, 1, good.requests.Load())
	_, _, err := w.do(t, post(t, chatPath, chatStream))
	require.ErrorIs(t, err, queue.ErrTimeout)
}

// limited gives all endpoints a limit.
func (w *world) limited(t *testing.T, change func(e *endpick.Endpoint)) {
	for _, s := range w.router.Endpoints() {
		e := *s.Candidate.Endpoint
		change(&e)
		require.NoError(t, w.router.Update(e))
	}
}

// Of two gateways whose requests wait for the same server each gets its share, though it hears of its own ends first.
// What is left to the other costs little, and nothing where there is no other, or no limit that it waits for.
func TestGatewaysTakeTurns(t *testing.T) {
	for i, alone := range []float64{94, 100, 100} {
		synctest.Test(t, func(t *testing.T) {
			const took = 100 * time.Millisecond
			w := newWorld(t, transport.Config{Base: rig.RoundTrip(func(*http.Request) (*http.Response, error) {
				time.Sleep(took)
				return answered(http.StatusOK, "application/json", "{}")
			}), Queue: &transport.QueueConfig{Saturation: queue.Concurrency(1)}}, "a")
			w.limited(t, func(e *endpick.Endpoint) { e.MaxInFlight = []int{1, 1, 0}[i] })
			if i != 1 {
				w.monitor.Core().Tell(func(string, bool) {})
			}
			theirs, end := 0, time.Now().Add(200*took)
			for range 3 {
				go func() {
					for time.Now().Before(end) {
						w.ok(t, post(t, chatPath, chatAtOnce))
					}
				}()
			}
			for ; time.Until(end) > 100*took; time.Sleep(3_000_007) {
				if w.router.Endpoints()[0].Candidate.InFlight.Requests == 0 {
					lease := rig.Must(w.router.Route(endpick.Request{Adopted: &endpick.Adopted{Endpoint: "a", Mirrored: true}}))
					time.Sleep(took)
					lease.Done(endpick.Outcome{})
					theirs++
				}
			}
			assert.True(t, i > 0 || theirs >= 20 && theirs <= 80, theirs)
			before, _ := w.t.Queue()
			time.Sleep(time.Until(end))
			after, _ := w.t.Queue()
			assert.InDelta(t, alone, after.Dispatched-before.Dispatched, 1, i)
			time.Sleep(10 * took)
		})
	}
}

// A thousand requests for three servers that take two at once, of which one dies: no server ever has
// three, all are served.
func TestTwoAtOnce(t *testing.T) {
	var most, served [3]atomic.Int32
	var dying atomic.Bool // what it was doing may go on when its connections are gone
	var engines []*engine
	var addresses []string
	for i := range 3 {
		var now atomic.Int32
		e := startEngine(t, func(http.ResponseWriter, *http.Request, []byte) bool {
			if n := now.Add(1); n > most[i].Load() && !(i == 1 && dying.Load()) {
				most[i].Store(n)
			}
			time.Sleep(time.Millisecond)
			served[i].Add(1)
			now.Add(-1) // before the response, after which the next one may come
			return false
		})
		engines, addresses = append(engines, e), append(addresses, e.URL)
	}
	spread := scores(func(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
		for i := range candidates { // whoever has least to do
			dst[i] = -float64(candidates[i].InFlight.Requests)
		}
	})
	w := newWorldOf(t, transport.Config{}, endpick.Config{Policy: endpick.Policy{Scorers: []endpick.Weighted{{Scorer: spread, Weight: 1}}}}, addresses...)
	w.limited(t, func(e *endpick.Endpoint) { e.MaxInFlight = 2 })
	var all sync.WaitGroup
	for c := range 40 {
		all.Go(func() {
			for i := range 25 {
				if c == 0 && i == 5 {
					dying.Store(true)
					engines[1].CloseClientConnections()
					engines[1].Listener.Close()
				}
				body := chatStream
				if i%2 == 0 {
					body = chatAtOnce
				}
				resp, _, err := w.do(t, post(t, chatPath, body))
				if cut := new(transport.UpstreamError); errors.As(err, &cut) && cut.Endpoint == "b" && body == chatStream {
					continue // it had begun
				}
				if assert.NoError(t, err) {
					assert.Equal(t, http.StatusOK, resp.StatusCode)
				}
			}
		})
	}
	all.Wait()
	for i := range 3 {
		assert.LessOrEqual(t, most[i].Load(), int32(2))
		assert.Positive(t, served[i].Load())
	}
	q, ok := w.t.Queue()
	assert.True(t, ok)
	assert.Zero(t, q.Requests)
	assert.Positive(t, q.Dispatched)
	assert.Zero(t, w.router.Stats().OpenLeases)
}

// Where all are full, requests go by priority, but a shorter prompt passes that fits where a longer one
// does not.
func TestRoomIsGivenInOrder(t *testing.T) {
	for _, q := range []*transport.QueueConfig{nil, {Saturation: queue.Concurrency(100)}} {
		small, large := startGated(t), startGated(t)
		w := newWorld(t, transport.Config{Queue: q}, small.URL, large.URL)
		w.limited(t, func(e *endpick.Endpoint) { e.MaxInFlight, e.MaxContext = 1, map[string]int{"a": 500, "b": 5000}[e.ID] })
		var all []chan reply
		send := func(name, priority string, length int) {
			all = append(all, w.sent(t, post(t, chatPath, fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, strings.Repeat("word ", length)),
				"X-Name", name, transport.PriorityHeader, priority)))
		}
		send("first", "0", 1)
		require.Equal(t, "first", small.next())
		send("long", "0", 1000)
		require.Equal(t, "long", large.next())
		for i, waits := range []struct {
			name, priority string
			length         int
		}{{"low", "-1", 1}, {"longer", "5", 1000}, {"high", "1", 1}, {"next", "1", 1}} {
			send(waits.name, waits.priority, waits.length)
			w.held(t, i+1)
		}
		small.release <- struct{}{}
		assert.Equal(t, "high", small.next(), "the longer one does not fit here")
		large.release <- struct{}{}
		assert.Equal(t, "longer", large.next())
		small.release <- struct{}{}
		assert.Equal(t, "next", small.next())
		small.release <- struct{}{}
		assert.Equal(t, "low", small.next())
		small.release <- struct{}{}
		large.release <- struct{}{}
		for _, c := range all {
			assert.NoError(t, (<-c).err)
		}
	}
}

// Whoever chooses the lengths of prompts does not choose how often requests are routed in vain; what fits more
// servers is not held up, not even what may fit.
func TestLengthsDoNotMakeWork(t *testing.T) {
	small, large := startGated(t), startGated(t)
	w := newWorld(t, transport.Config{Names: map[string]transport.Name{"any": {Models: []string{"s", "l"}}}})
	require.NoError(t, w.router.Add(endpick.Endpoint{ID: "s", Address: small.URL, Models: []string{"s"}, MaxInFlight: 1, MaxContext: 500}))
	require.NoError(t, w.router.Add(endpick.Endpoint{ID: "l", Address: large.URL, Models: []string{"l"}, MaxInFlight: 1, MaxContext: 5000}))
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	send := func(name string, words int) {
		req := post(t, chatPath, fmt.Sprintf(`{"model":"any","messages":[{"role":"user","content":%q}]}`, strings.Repeat("word ", words)), "X-Name", name)
		all.Go(func() { _, _, _ = w.do(t, req.WithContext(ctx)) })
	}
	send("first", 1)
	require.Equal(t, "first", small.next())
	send("long", 1000)
	require.Equal(t, "long", large.next())
	start := time.Now()
	for i := range 100 {
		send("waits", 2000-10*i)
		w.held(t, i+1)
	}
	dispatches := 100 + int(time.Since(start)/(10*time.Millisecond))
	assert.Less(t, int(w.router.Stats().NoEndpoint), 10*dispatches)
	send("may fit", 470)
	w.held(t, 101)
	small.release <- struct{}{}
	assert.Equal(t, "may fit", small.next())
	leave()
	all.Wait()
}

// A prompt that is too long for all servers is refused with the numbers, in the form of its API.
func TestTooLongForAll(t *testing.T) {
	e := startEngine(t, nil)
	w := newWorld(t, transport.Config{}, e.URL)
	w.limited(t, func(e *endpick.Endpoint) { e.MaxContext = 100 })
	_, _, err := w.do(t, post(t, chatPath, strings.Replace(chatAtOnce, "Tell", strings.Repeat("Tell ", 1000), 1)))
	status, _, body := transport.ErrorResponse(chatPath, err)
	assert.Equal(t, http.StatusBadRequest, status)
	assert.Regexp(t, `the prompt has about 12\d\d tokens, and the longest context of a server for this model is 100`, string(body))
	assert.Contains(t, string(body), `"code":"context_length_exceeded"`)
	w.ok(t, post(t, chatPath, chatAtOnce))
}

// Requests wait for room as long as the queue lets them, and no longer than their clients.
func TestNoRoomInTime(t *testing.T) {
	g := startGated(t)
	w := newWorld(t, transport.Config{}, g.URL)
	w.limited(t, func(e *endpick.Endpoint) { e.MaxInFlight = 1 })
	first := w.first(t, t.Context(), g)
	ctx, leave := context.WithCancel(t.Context())
	second := w.later(t, ctx, "second")
	w.held(t, 1)
	leave()
	assert.ErrorIs(t, (<-second).err, context.Canceled)
	w.held(t, 0)

	// A retry waits, too, as the server that fails it is the only one that has room, which others find there.
	b := startGated(t)
	b.then = func(w http.ResponseWriter, _ string) bool { return status(503)(w, nil, nil) }
	w.add(t, "b", b.URL)
	w.limited(t, func(e *endpick.Endpoint) { e.MaxInFlight = 1 })
	third := w.later(t, t.Context(), "third")
	b.release <- struct{}{}
	require.Equal(t, "third", b.next())
	w.held(t, 1)
	fourth := w.later(t, t.Context(), "fourth")
	require.Equal(t, "fourth", b.next())
	g.release <- struct{}{}
	assert.Equal(t, "third", g.next())

	// It does not if its last server is removed, whatever others wait for.
	b.release <- struct{}{}
	w.held(t, 1)
	for _, name := range []string{"fifth", "sixth"} {
		w.later(t, t.Context(), name, transport.PriorityHeader, "1")
	}
	assert.Contains(t, []string{"fifth", "sixth"}, b.next())
	w.held(t, 2)
	require.NoError(t, w.router.Remove("a"))
	w.held(t, 1)
	assert.Equal(t, http.StatusServiceUnavailable, (<-fourth).resp.StatusCode)
	g.release <- struct{}{}
	for _, c := range []chan reply{first, third} {
		r := <-c
		require.NoError(t, r.err)
		assert.Equal(t, http.StatusOK, r.resp.StatusCode)
	}

	router := rig.Must(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "e", Address: g.URL, MaxInFlight: 1}}}))
	t2 := rig.Must(transport.New(transport.Config{Router: router, Queue: &transport.QueueConfig{Bounds: queue.Config{Timeout: 20 * time.Millisecond}}}))
	lease := rig.Must(router.Route(endpick.Request{}))
	assert.ErrorIs(t, rig.Err(t2.RoundTrip(post(t, chatPath, chatAtOnce))), queue.ErrTimeout)
	lease.Done(endpick.Outcome{})
	d := rig.Must(transport.NewDispatcher(transport.Config{Router: router}))
	call := rig.Must(d.Read(transport.Incoming{Method: "POST", Path: chatPath, Header: http.Header{}, Body: []byte(chatAtOnce)}))
	defer call.Close()
	lease = rig.Must(router.Route(endpick.Request{}))
	_, err := call.Route(t.Context())
	_, header, body := transport.ErrorResponse(chatPath, err)
	assert.Contains(t, string(body), "all servers for this model are busy")
	assert.Equal(t, "2", header.Get("Retry-After"))
	lease.Done(endpick.Outcome{})
}
