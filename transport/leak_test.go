package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport"
)

// moody answers requests in many ways, most of them bad.
func moody(w http.ResponseWriter, r *http.Request, body []byte) bool {
	mood := r.Header.Get("X-Mood")
	switch mood {
	case "500", "503", "429":
		code := 0
		fmt.Sscan(mood, &code)
		return status(code)(w, r, body)
	case "break before":
		panic(http.ErrAbortHandler)
	case "break after":
		breaksOff("text/event-stream", role+delta(`"content":"Once"`))(w, r, body)
	case "slow":
		answer(w, body, 3*time.Millisecond)
		return true
	case "hang":
		select {
		case <-r.Context().Done():
		case <-time.After(time.Second):
		}
		return true
	case "hang after":
		sse(role+delta(`"content":"Once"`))(w, r, body)
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
		case <-time.After(time.Second):
		}
		panic(http.ErrAbortHandler)
	case "garbage":
		return sse("data: {\"choices\":[{{{\n\n\x00\xff\r\r\n")(w, r, body)
	}
	return false
}

// A hang takes the time of all attempts, so there are few.
var moods = []string{
	"", "", "", "", "", "", "", "", "slow", "slow", "slow", "slow", "500", "503", "503", "429",
	"break before", "break before", "break after", "break after", "hang", "hang after", "garbage",
}

// Through a real gateway, without a queue and with a short one: thousands of requests
// whose clients leave, whose servers fail or stall, and whose endpoints are removed in
// mid-stream. At the end nothing is in flight and no goroutine is left.
func TestNothingLeaks(t *testing.T) {
	t.Run("no queue", func(t *testing.T) { leaks(t, nil) })
	t.Run("queue", func(t *testing.T) {
		leaks(t, &transport.QueueConfig{
			Bounds:     queue.Config{MaxRequests: 10, Timeout: 40 * time.Millisecond},
			Saturation: queue.Concurrency(6),
		})
	})
}

func leaks(t *testing.T, held *transport.QueueConfig) {
	requests := 1000
	if testing.Short() {
		requests = 400
	}
	before := runtime.NumGoroutine()
	var addresses []string
	var engines []*engine
	for range 4 {
		e := startEngine(t, moody)
		e.Config.ErrorLog = log.New(io.Discard, "", 0)
		engines = append(engines, e)
		addresses = append(addresses, e.URL)
	}
	w := newWorld(t, transport.Config{FirstByteTimeout: 250 * time.Millisecond, ResponseTimeout: 250 * time.Millisecond, Queue: held}, addresses...)
	require.NoError(t, w.router.SetPolicy(endpick.Policy{Matcher: w.observer}))
	gateway := front(t, w)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

	stopChurn := make(chan struct{})
	var churn sync.WaitGroup
	churn.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stopChurn:
				return
			case <-time.After(3 * time.Millisecond):
			}
			id := string(rune('a' + i%3)) // the fourth stays
			if w.router.Remove(id) == nil {
				continue
			}
			assert.NoError(t, w.router.Add(endpick.Endpoint{ID: id, Address: addresses[i%3]}))
		}
	})

	var next, answered, aborted atomic.Int64
	var clients sync.WaitGroup
	for n := range 48 {
		rng := rand.New(rand.NewPCG(1, uint64(n)))
		clients.Go(func() {
			for next.Add(1) <= int64(requests) {
				ctx, cancel := context.WithCancel(context.Background())
				body := chatStream
				if rng.IntN(4) == 0 {
					body = chatAtOnce
				}
				req, _ := http.NewRequestWithContext(ctx, http.MethodPost, gateway.URL+chatPath, strings.NewReader(body))
				req.Header.Set("X-Mood", moods[rng.IntN(len(moods))])
				if rng.IntN(4) == 0 { // leaves at some time
					time.AfterFunc(time.Duration(rng.IntN(8000))*time.Microsecond, cancel)
				}
				resp, err := client.Do(req)
				if err != nil {
					aborted.Add(1)
					cancel()
					continue
				}
				switch rng.IntN(4) {
				case 0: // reads a little and leaves
					io.ReadFull(resp.Body, make([]byte, rng.IntN(200)))
				case 1: // leaves at once
				default:
					io.Copy(io.Discard, resp.Body)
				}
				resp.Body.Close()
				cancel()
				answered.Add(1)
			}
		})
	}
	clients.Wait()
	close(stopChurn)
	churn.Wait()
	client.CloseIdleConnections()
	gateway.Close()
	w.idle(t)
	w.t.CloseIdleConnections()
	for _, e := range engines {
		e.Close()
	}

	stats := w.router.Stats()
	assert.Equal(t, stats.Routed, stats.Closed, "each lease was closed once")
	assert.Zero(t, stats.Reaped, "none was lost")
	assert.Zero(t, stats.RemovedOpen)
	assert.Len(t, w.observer.all(), int(stats.Routed))
	attempts := 0
	for _, r := range w.records {
		attempts += r.Attempts
	}
	if held == nil { // else a client may leave as its request is routed
		assert.EqualValues(t, attempts, stats.Routed, "one lease for each attempt")
	}
	kinds := map[endpick.Status]int{}
	for _, o := range w.observer.all() {
		kinds[o.Status]++
	}
	for _, s := range []endpick.Status{endpick.Completed, endpick.Failed, endpick.Canceled} {
		assert.Greater(t, kinds[s], requests/50, "%v: the test did not do what it is for", s)
	}
	assert.Len(t, w.records, int(w.t.Stats().Requests), "one record for each request")
	if q, ok := w.t.Queue(); ok {
		assert.Zero(t, q.Requests)
		assert.Zero(t, q.Tokens)
		assert.Zero(t, q.Bytes)
		assert.Equal(t, q.Pushed, q.Dispatched+q.TimedOut+q.Shed+q.Canceled, "each leaves the queue once")
		assert.Positive(t, q.TimedOut+q.Refused)
		assert.Positive(t, q.Canceled)
	}
	t.Logf("%d answered, %d aborted, %v, %+v", answered.Load(), aborted.Load(), kinds, w.t.Stats())
	settled(t, before)
}

// A stream may take minutes; its prompt is not kept for that long.
func TestPromptsAreNotKeptWhileTheResponseStreams(t *testing.T) {
	more := make(chan struct{})
	e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		sse(role+delta(`"content":"a"`))(w, r, nil)
		w.(http.Flusher).Flush()
		<-more
		io.WriteString(w, finish)
	}))
	defer e.Close()
	w := newWorld(t, transport.Config{}, e.URL)
	const streams, size = 4, 2 << 20
	heap := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := heap()
	var open []*http.Response
	for range streams {
		body := `{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("x", size) + `"}]}`
		req := post(t, chatPath, body)
		resp, err := w.t.RoundTrip(req)
		require.NoError(t, err)
		assert.Same(t, req, resp.Request)
		req.Body, req.GetBody = nil, nil // the caller's references
		open = append(open, resp)
	}
	// The hashed blocks stay for the record, here and in the observer: a third, with some
	// margin. One of the four prompts would be a quarter more. What net/http and pools
	// release a little later is not counted.
	assert.Eventually(t, func() bool { return heap()-before < streams*size/2 }, 30*time.Second, 10*time.Millisecond)
	close(more)
	for _, resp := range open {
		_, err := io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		resp.Body.Close()
	}
	w.idle(t)
}

// However an attempt ends, its context is done, so that the base lets go of it, and
// nothing refers to the request any more, though its client's context lives on.
func TestNothingIsKeptOfARequestThatHasEnded(t *testing.T) {
	client, cancel := context.WithCancel(t.Context()) // a context that can be followed
	defer cancel()
	stream := func(body string) func(*http.Request) (*http.Response, error) {
		return func(*http.Request) (*http.Response, error) { return answered(200, "text/event-stream", body) }
	}
	read := func(t *testing.T, b io.ReadCloser) {
		_, err := io.Copy(io.Discard, b)
		require.NoError(t, err)
	}
	leave := func(t *testing.T, b io.ReadCloser) { require.NoError(t, b.Close()) }
	for name, tc := range map[string]struct {
		upgrades bool
		answer   func(*http.Request) (*http.Response, error)
		then     func(*testing.T, io.ReadCloser)
	}{
		"read to its end":    {false, stream(role + finish + done), read},
		"left by its client": {false, stream(role + finish + done), leave},
		"no response":        {false, func(*http.Request) (*http.Response, error) { return nil, errors.New("broken") }, nil},
		"nothing in it":      {false, stream(""), nil},
		"a failure":          {false, func(*http.Request) (*http.Response, error) { return answered(500, "", "{}") }, read},
		"another protocol": {true, func(*http.Request) (*http.Response, error) {
			near, _ := net.Pipe()
			return &http.Response{StatusCode: 101, Header: http.Header{"Upgrade": {"echo"}}, Body: near}, nil
		}, leave},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []context.Context
			w := newWorld(t, transport.Config{Base: tripper(func(r *http.Request) (*http.Response, error) {
				asked = append(asked, r.Context())
				return tc.answer(r)
			})}, "a", "b", "c")
			kept := func() weak.Pointer[http.Request] {
				req := post(t, chatPath, chatStream)
				if tc.upgrades {
					req = upgrade(t, "m")
				}
				req = req.WithContext(client)
				resp, err := w.t.RoundTrip(req)
				if tc.then == nil {
					require.Error(t, err)
				} else {
					require.NoError(t, err)
					tc.then(t, resp.Body)
				}
				return weak.Make(req)
			}()
			for _, ctx := range asked {
				assert.Error(t, ctx.Err())
			}
			asked = nil
			require.Eventually(t, func() bool {
				runtime.GC()
				return kept.Value() == nil
			}, 30*time.Second, time.Millisecond)
		})
	}
}
