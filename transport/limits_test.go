package transport_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport"
)

// limited gives all endpoints a limit.
func (w *world) limited(t *testing.T, change func(e *endpick.Endpoint)) {
	for _, s := range w.router.Endpoints() {
		e := *s.Candidate.Endpoint
		change(&e)
		require.NoError(t, w.router.Update(e))
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
		w.limited(t, func(e *endpick.Endpoint) {
			e.MaxInFlight, e.MaxContext = 1, map[string]int{"a": 500, "b": 5000}[e.ID]
		})
		var all []chan reply
		send := func(name, priority string, length int) {
			all = append(all, w.sent(t, post(t, chatPath, fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, strings.Repeat("word ", length)),
				"X-Name", name, transport.PriorityHeader, priority)))
		}
		send("first", "0", 1)
		require.Equal(t, "first", <-small.arrived)
		send("long", "0", 1000)
		require.Equal(t, "long", <-large.arrived)
		for i, waits := range []struct {
			name, priority string
			length         int
		}{{"low", "-1", 1}, {"longer", "5", 1000}, {"high", "1", 1}, {"next", "1", 1}} {
			send(waits.name, waits.priority, waits.length)
			w.held(t, i+1)
		}
		small.release <- struct{}{}
		assert.Equal(t, "high", <-small.arrived, "the longer one does not fit here")
		large.release <- struct{}{}
		assert.Equal(t, "longer", <-large.arrived)
		small.release <- struct{}{}
		assert.Equal(t, "next", <-small.arrived)
		small.release <- struct{}{}
		assert.Equal(t, "low", <-small.arrived)
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
	require.Equal(t, "first", <-small.arrived)
	send("long", 1000)
	require.Equal(t, "long", <-large.arrived)
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
	assert.Equal(t, "may fit", <-small.arrived)
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

	// A retry waits, too: the server that fails it is the only one that has room.
	w.add(t, "b", startEngine(t, status(503)).URL)
	third := w.later(t, t.Context(), "third")
	w.held(t, 1)
	g.release <- struct{}{}
	assert.Equal(t, "third", <-g.arrived)
	g.release <- struct{}{}
	for _, c := range []chan reply{first, third} {
		r := <-c
		require.NoError(t, r.err)
		assert.Equal(t, http.StatusOK, r.resp.StatusCode)
	}

	router := rig.Must(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "e", Address: g.URL, MaxInFlight: 1}}}))
	t2 := rig.Must(transport.New(transport.Config{Router: router, Queue: &transport.QueueConfig{Bounds: queue.Config{Timeout: 20 * time.Millisecond}}}))
	lease := rig.Must(router.Route(endpick.Request{}))
	_, err := t2.RoundTrip(post(t, chatPath, chatAtOnce))
	assert.ErrorIs(t, err, queue.ErrTimeout)
	lease.Done(endpick.Outcome{})
	d := rig.Must(transport.NewDispatcher(transport.Config{Router: router}))
	call := rig.Must(d.Read(transport.Incoming{Method: "POST", Path: chatPath, Header: http.Header{}, Body: []byte(chatAtOnce)}))
	defer call.Close()
	lease = rig.Must(router.Route(endpick.Request{}))
	_, err = call.Route(t.Context())
	_, header, body := transport.ErrorResponse(chatPath, err)
	assert.Contains(t, string(body), "all servers for this model are busy")
	assert.Equal(t, "2", header.Get("Retry-After"))
	lease.Done(endpick.Outcome{})
}

// A server that sleeps is woken once by the first request that does not reach it; that one and the others
// wait until it is there, and are served.
func TestWake(t *testing.T) {
	at := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	address := at.Addr().String()
	require.NoError(t, at.Close())
	var woken atomic.Int32
	var e *engine
	var ready sync.WaitGroup
	w := newWorld(t, transport.Config{Wake: func(to *endpick.Endpoint) {
		assert.Equal(t, "a", to.ID)
		if woken.Add(1) == 1 {
			ready.Go(func() {
				time.Sleep(300 * time.Millisecond)
				e = &engine{}
				server := &http.Server{Handler: e}
				t.Cleanup(func() { server.Close() })
				go server.Serve(rig.Must(net.Listen("tcp", address)))
			})
		}
	}}, address)
	w.limited(t, func(e *endpick.Endpoint) { e.WakeTime = time.Second })
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			resp, _, err := w.do(t, post(t, chatPath, chatAtOnce))
			if assert.NoError(t, err) {
				assert.Equal(t, http.StatusOK, resp.StatusCode)
			}
		})
	}
	all.Wait()
	ready.Wait()
	assert.EqualValues(t, 1, woken.Load())
	assert.EqualValues(t, 5, e.requests.Load())
	before, _ := w.t.Queue()
	w.ok(t, post(t, chatPath, chatAtOnce))
	w.ok(t, post(t, chatPath, chatAtOnce))
	after, _ := w.t.Queue()
	assert.Equal(t, before.Pushed, after.Pushed, "nobody waits for it any more")
}

// A server that does not wake up is waited for no longer than that may take, however often it is tried.
func TestAsleepForGood(t *testing.T) {
	w := newWorld(t, transport.Config{LoadTimeout: 1100 * time.Millisecond, Wake: func(*endpick.Endpoint) {}}, "127.0.0.1:1")
	w.limited(t, func(e *endpick.Endpoint) { e.WakeTime = time.Second })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, _, err := w.do(t, post(t, chatPath, chatAtOnce).WithContext(ctx))
	assert.Equal(t, http.StatusServiceUnavailable, transport.StatusOf(err), err)
	assert.Equal(t, 2, w.record(t).Attempts)
}

// A server that sleeps is left alone while another one is expected to answer sooner than it would wake.
func TestWakeIfItIsSooner(t *testing.T) {
	for _, c := range []struct {
		expected time.Duration
		calls    int32
	}{{0, 0}, {time.Second, 0}, {3 * time.Second, 1}} {
		up := startEngine(t, nil)
		var woken atomic.Int32
		w := newWorldOf(t, transport.Config{Wake: func(*endpick.Endpoint) { woken.Add(1) }}, endpick.Config{Policy: endpick.Policy{Predictor: ttft(c.expected)}},
			"127.0.0.1:1", up.URL)
		w.limited(t, func(e *endpick.Endpoint) { e.WakeTime = 2 * time.Second })
		for range 5 {
			w.ok(t, post(t, chatPath, chatStream))
		}
		assert.Eventually(t, func() bool { return woken.Load() >= c.calls }, 10*time.Second, time.Millisecond, "%v", c.expected)
		time.Sleep(10 * time.Millisecond) // for a call too many
		assert.Equal(t, c.calls, woken.Load(), "%v", c.expected)
	}
}

// One that sleeps is woken as well while it is avoided because of its failures, some time after it was last tried.
func TestWakeWhoIsAvoided(t *testing.T) {
	var now, woken atomic.Int64
	w := newWorldOf(t, transport.Config{Wake: func(*endpick.Endpoint) { woken.Add(1) }}, endpick.Config{
		Clock: func() time.Time { return time.Unix(1000, now.Load()) }, Policy: endpick.Policy{Predictor: ttft(3 * time.Second)},
	}, "127.0.0.1:1", startEngine(t, nil).URL)
	w.limited(t, func(e *endpick.Endpoint) { e.WakeTime = 5 * time.Second }) // the other is sooner
	for range 5 {
		w.ok(t, post(t, chatPath, chatStream))
		now.Add(int64(1500 * time.Millisecond))
	}
	assert.Zero(t, woken.Load())
	tried := len(w.observer.all())
	w.limited(t, func(e *endpick.Endpoint) { e.WakeTime = 2 * time.Second })
	w.ok(t, post(t, chatPath, chatStream))
	require.Len(t, w.observer.all(), tried+1, "it was not tried again")
	assert.Eventually(t, func() bool { return woken.Load() == 1 }, 10*time.Second, time.Millisecond)
}

// ttft predicts this; 0: nothing.
type ttft time.Duration

func (d ttft) Predict(_ *endpick.Request, candidates []endpick.Candidate) {
	for i := range candidates {
		if d > 0 {
			candidates[i].Prediction = endpick.Prediction{Has: endpick.TTFT, TTFT: time.Duration(d)}
		}
	}
}
