package transport_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// busy is a server, in a synctest bubble, that accepts every connection and is busy in one of these ways.
type busy struct {
	mute    bool // it does not answer its health page while it computes
	room    int  // how many it computes at once; 0: any number
	queue   int  // how many may wait for that; below 0: any number
	finish  bool // it computes on when the client has left
	loads   time.Duration
	loading time.Duration // after that, for so long; it answers nothing meanwhile but its page
	start   time.Time

	mu       sync.Mutex
	at       []chan struct{} // of those that wait, in order
	running  int
	computed map[string]int // by request: how often it was begun
	refused  map[string]int
}

const (
	vllmFull  = `{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.","type":"Service Unavailable","param":null,"code":503}}`
	vllmEvent = "data: " + vllmFull + "\n\ndata: [DONE]\n\n"
)

func (b *busy) RoundTrip(r *http.Request) (*http.Response, error) {
	until := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		case <-r.Context().Done():
			return false
		}
	}
	if r.URL.Path == "/health" {
		b.mu.Lock()
		silent := b.mute && b.running > 0
		b.mu.Unlock()
		if silent {
			until(nil)
			return nil, r.Context().Err()
		}
		return answered(200, "", "")
	}
	said, _ := io.ReadAll(r.Body)
	stream := strings.Contains(string(said), `"stream":true`)
	var id string
	var takes time.Duration
	_, words, _ := strings.Cut(string(said), `"prompt":"`)
	rig.Must(fmt.Sscan(words, &id, (*int64)(&takes)))
	if since := time.Since(b.start); since >= b.loads && since < b.loads+b.loading {
		takes += b.loads + b.loading - since
	}
	b.mu.Lock()
	if b.room > 0 && b.running >= b.room {
		if b.queue >= 0 && len(b.at) >= b.queue {
			b.refused[id]++
			b.mu.Unlock()
			if stream {
				return answered(200, "text/event-stream", vllmEvent)
			}
			return answered(503, "application/json", vllmFull)
		}
		mine := make(chan struct{})
		b.at = append(b.at, mine)
		b.mu.Unlock()
		if !until(mine) {
			go func() { <-mine; b.next() }()
			return nil, r.Context().Err()
		}
		b.mu.Lock()
	} else {
		b.running++
	}
	b.computed[id]++
	b.mu.Unlock()
	over := make(chan struct{})
	timer := time.AfterFunc(takes, func() { close(over); b.next() })
	if !until(over) {
		if !b.finish && timer.Stop() {
			b.next()
		}
		return nil, r.Context().Err()
	}
	if stream {
		return answered(200, "text/event-stream", delta(`"content":"word"`)+finish+done)
	}
	return answered(200, "application/json", `{"choices":[{"index":0,"text":"word","finish_reason":"stop"}]}`)
}

// next lets another one begin, or leaves the room empty.
func (b *busy) next() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.at) > 0 {
		close(b.at[0])
		b.at = b.at[1:]
		return
	}
	b.running--
}

// job is a request of a timeline.
type job struct {
	at, takes time.Duration
	patience  time.Duration // of the client; 0: without end
	stream    bool
}

// fate is what became of a job.
type fate struct {
	status  int
	err     error
	waited  time.Duration
	header  http.Header
	reading error
}

// timeline runs jobs against servers behind a transport with a monitor.
func timeline(t *testing.T, servers []*busy, config transport.Config, jobs []job) []fate {
	fates := make([]fate, len(jobs))
	synctest.Test(t, func(t *testing.T) {
		byHost := map[string]*busy{}
		var endpoints []endpick.Endpoint
		for i, b := range servers {
			id := string(rune('a' + i))
			b.start, b.computed, b.refused, byHost[id] = time.Now(), map[string]int{}, map[string]int{}, b
			endpoints = append(endpoints, endpick.Endpoint{ID: id, Address: id})
		}
		base := rig.RoundTrip(func(r *http.Request) (*http.Response, error) { return byHost[r.URL.Host].RoundTrip(r) })
		router := rig.Must(endpick.New(endpick.Config{Endpoints: endpoints, Seed: 1, Policy: endpick.Policy{Scorers: []endpick.Weighted{{Scorer: scorer.LeastLoaded(), Weight: 1}}}}))
		monitor := rig.Must(health.New(health.Config{Router: router, Client: &http.Client{Transport: base}}))
		config.Router, config.Base, config.Health = router, base, monitor
		tr := rig.Must(transport.New(config))
		stop := rig.Running(t.Context(), monitor.Run)
		var all sync.WaitGroup
		for i, j := range jobs {
			all.Go(func() {
				time.Sleep(j.at)
				f := &fates[i]
				start := time.Now()
				defer func() { f.waited = time.Since(start) }()
				ctx := t.Context()
				if j.patience > 0 {
					var leave func()
					ctx, leave = context.WithTimeout(ctx, j.patience)
					defer leave()
				}
				in := post(t, "/v1/completions", fmt.Sprintf(`{"model":"m","stream":%v,"prompt":"%d %d "}`, j.stream, i, j.takes)).WithContext(ctx)
				resp, err := tr.RoundTrip(in)
				if f.err = err; err == nil {
					f.status, f.header = resp.StatusCode, resp.Header
					_, f.reading = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			})
		}
		all.Wait()
		stop()
		time.Sleep(time.Hour) // what the server computes for nobody
		assert.Zero(t, router.Stats().OpenLeases)
	})
	return fates
}

// The two timelines that were reported: a server that computes one prompt at a time and does not
// answer its page meanwhile, alone or one of two; and one that loads a model.
func TestNobodyIsRefusedWhomABusyServerWouldServe(t *testing.T) {
	jobs := func(n int, every, at, takes time.Duration, stream bool) (all []job) {
		for i := range n {
			all = append(all, job{at: at + time.Duration(i)*every, takes: takes, stream: stream})
		}
		return all
	}
	const s = time.Second
	one := append(jobs(5, s/10, 0, s/20, false), job{at: s, takes: 30 * s}, job{at: 4 * s, takes: s / 10}, job{at: 12 * s, takes: s / 10}, job{at: 20 * s, takes: s / 10}, job{at: 24 * s, takes: s / 10})
	for name, tc := range map[string]struct {
		servers []*busy
		jobs    []job
	}{
		"one prompt at a time":       {[]*busy{{mute: true, room: 1, queue: -1}}, one},
		"two such servers":           {[]*busy{{mute: true, room: 1, queue: -1}, {mute: true, room: 1, queue: -1}}, append(jobs(10, 100*time.Millisecond, 0, s/20, false), jobs(12, 2*s, s, 25*s, false)...)},
		"loading":                    {[]*busy{{loads: s, loading: 35 * s, queue: -1}}, append(jobs(40, 20*time.Millisecond, 0, s/100, true), jobs(10, 2*s, s, s/100, true)...)},
		"clients that leave, and go": {[]*busy{{mute: true, room: 1, queue: -1, finish: true}}, append(jobs(9, s/10, 0, s/20, false), job{at: s, takes: 40 * s, patience: 2 * s}, job{at: 20 * s, takes: s}, job{at: 30 * s, takes: s})},
	} {
		t.Run(name, func(t *testing.T) {
			for i, f := range timeline(t, tc.servers, transport.Config{}, tc.jobs) {
				if tc.jobs[i].patience == 0 {
					require.NoError(t, f.err, "%d", i)
					assert.Equal(t, 200, f.status)
				}
			}
			for _, b := range tc.servers {
				for id, n := range b.computed {
					assert.Equal(t, 1, n, id)
				}
			}
			if len(tc.servers) == 2 {
				assert.Len(t, tc.servers[0].computed, len(tc.jobs)-len(tc.servers[1].computed), "none at both")
			}
		})
	}
}

// Whatever the timeline of a server that is busy, in any way: a request is refused only by the server
// itself, and then told when to try again, or given up by its client or its own limit. None is
// computed twice.
func TestBusyTimelines(t *testing.T) {
	seconds := func(t *rapid.T, most float64, label string) time.Duration {
		return time.Duration(rapid.Float64Range(0, most).Draw(t, label) * float64(time.Second))
	}
	rapid.Check(t, func(rt *rapid.T) {
		for _, kind := range []string{"silent page", "loading", "long prompts", "full", "full, silent page"} {
			for range 2 {
				b := &busy{room: 1, queue: -1, finish: rapid.Bool().Draw(rt, "finish")}
				long := 40.0
				switch kind {
				case "silent page":
					b.mute = true
				case "loading":
					b.room, b.loads, b.loading, long = 0, seconds(rt, 30, "loads"), seconds(rt, 90, "loading"), 1
				case "full", "full, silent page":
					b.mute, b.queue = kind != "full", rapid.IntRange(0, 3).Draw(rt, "queue")
					if !b.mute {
						b.room = rapid.IntRange(1, 4).Draw(rt, "room")
					}
				}
				var jobs []job
				for range rapid.IntRange(0, 12).Draw(rt, "quick") { // so that it is known how long it takes
					jobs = append(jobs, job{at: seconds(rt, 2, "at"), takes: seconds(rt, 0.1, "takes"), stream: rapid.Bool().Draw(rt, "stream")})
				}
				for range rapid.IntRange(1, 12).Draw(rt, "jobs") {
					j := job{at: 2*time.Second + seconds(rt, 60, "at"), takes: seconds(rt, long, "takes"), stream: rapid.Bool().Draw(rt, "stream")}
					if rapid.IntRange(0, 3).Draw(rt, "leaves") == 0 {
						j.patience = seconds(rt, 20, "patience") + 1
					}
					jobs = append(jobs, j)
				}
				limit := 10*time.Second + seconds(rt, 110, "limit")
				for i, f := range timeline(t, []*busy{b}, transport.Config{FirstByteTimeout: limit, ResponseTimeout: limit}, jobs) {
					id := fmt.Sprint(i)
					if b.computed[id] > 1 || b.refused[id] > 1 {
						rt.Fatalf("%s: %d was computed %d times, refused %d times", kind, i, b.computed[id], b.refused[id])
					}
					switch {
					case f.err == nil && f.status == 200 && f.reading == nil && b.refused[id] == 0:
					case f.err == nil && b.refused[id] == 1 && f.header.Get("Retry-After") == "1":
					case jobs[i].patience > 0 && f.waited >= jobs[i].patience:
					case errors.Is(f.err, transport.ErrTimeout) && f.waited >= limit:
					default:
						rt.Fatalf("%s: %d (%+v) after %v of %v: %d %v, %v", kind, i, jobs[i], f.waited, limit, f.status, f.err, f.reading)
					}
				}
			}
		}
	})
}

// What engines and proxies say when they are full or load a model, and what they say when it is
// something else. An endpoint that is full is avoided for as long as it asks for, or a moment; it never
// fails. If there is no other, the client gets its answer, and when to try again.
func TestWhoIsFull(t *testing.T) {
	const messages = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"internal_error\",\"message\":\"2 validation errors [input_value={'error': {'message': 'Th...am': None, 'code': 503}}]\"}}\n\n"
	for name, tc := range map[string]struct {
		path    string
		status  int // of what is said; one of 200 is a stream's
		body    string
		after   string // Retry-After
		waits   bool   // the report says that requests wait there
		full    bool
		avoided time.Duration
		made    string
	}{
		"429":                 {status: 429, full: true, avoided: time.Second / 4, made: "1"},
		"429, and when":       {status: 429, after: "7", full: true, avoided: 7 * time.Second, made: "7"},
		"429, at":             {status: 429, after: "Thu, 26 Nov 2026 08:00:09 GMT", full: true, avoided: 9 * time.Second, made: "Thu, 26 Nov 2026 08:00:09 GMT"},
		"429, absurdly late":  {status: 429, after: "99999999999999999999", full: true, avoided: 30 * time.Second, made: "99999999999999999999"},
		"429, nonsense":       {status: 429, after: "soon", full: true, avoided: time.Second / 4, made: "soon"},
		"vLLM":                {status: 503, body: vllmFull, full: true, avoided: time.Second / 4, made: "1"},
		"SGLang":              {status: 503, body: `{"object":"error","message":"The request queue is full.","code":503}`, full: true, avoided: time.Second / 4, made: "1"},
		"Ollama":              {status: 503, body: `{"error":"server busy, please try again.  maximum pending requests exceeded"}`, after: "2", full: true, avoided: 2 * time.Second, made: "2"},
		"llama.cpp":           {status: 503, body: `{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}`, full: true, avoided: time.Second / 4, made: "1"},
		"Anthropic":           {status: 529, body: `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, full: true, avoided: time.Second / 4, made: "1"},
		"Triton":              {status: 503, body: `{"error":"Exceeds maximum queue size"}`, full: true, avoided: time.Second / 4, made: "1"},
		"Ray Serve":           {status: 503, body: "Request dropped due to backpressure (num_queued_requests=16, max_queued_requests=16).", full: true, avoided: time.Second / 4, made: "1"},
		"at a full queue":     {status: 503, waits: true, full: true, avoided: time.Second / 4, made: "1"},
		"vLLM, in a stream":   {status: 200, body: vllmEvent, full: true, avoided: time.Second / 4, made: "1"},
		"messages":            {path: "/v1/messages", status: 200, body: messages, full: true, avoided: time.Second / 4, made: "1"},
		"503, no word":        {status: 503, body: `{"error":{"message":"Service Unavailable, successfully so","code":503}}`},
		"503, no word, later": {status: 503, after: "3", avoided: 3 * time.Second, made: "3"},
		"529, no word":        {status: 529},
		"500":                 {status: 500, body: `{"error":"busy, full, 503"}`, waits: true},
		"too long, an event":  {status: 200, body: "data: {\"error\":{\"message\":\"your prompt contains at least 8193 input tokens, which exceeds this limit\",\"code\":400}}\n\n"},
		"another event":       {status: 200, body: "data: {\"error\":{\"message\":\"503 is no memory\",\"code\":500}}\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				config := pinned
				config.Endpoints = []endpick.Endpoint{{ID: "a", Address: "a"}, {ID: "b", Address: "b"}}
				router := rig.Must(endpick.New(config))
				monitor := rig.Must(health.New(health.Config{Router: router}))
				sent := map[string]int{}
				tr := rig.Must(transport.New(transport.Config{Router: router, Health: monitor, Base: rig.RoundTrip(func(r *http.Request) (*http.Response, error) {
					_, _ = io.ReadAll(r.Body)
					sent[r.URL.Host]++
					if r.URL.Host == "b" {
						body := delta(`"content":"word"`) + finish + done
						if tc.path != "" {
							body = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
						}
						return answered(200, "text/event-stream", body)
					}
					resp, err := answered(tc.status, "text/event-stream", tc.body)
					resp.Header.Set("Date", "Thu, 26 Nov 2026 08:00:00 GMT")
					if tc.after != "" {
						resp.Header.Set("Retry-After", tc.after)
					}
					return resp, err
				})}))
				path := cmp.Or(tc.path, chatPath)
				ask := func() *http.Response {
					resp := rig.Must(tr.RoundTrip(post(t, path, chatStream)))
					rig.Must(io.Copy(io.Discard, resp.Body))
					resp.Body.Close()
					return resp
				}
				if tc.waits {
					require.NoError(t, router.Report("a", endpick.Load{Waiting: 1, Running: 2}))
				} else { // not that it says so
					rig.Must(router.Route(endpick.Request{Stream: true, Exclude: []string{"b"}}))
				}
				for n := range 5 {
					assert.Equal(t, 200, ask().StatusCode)
					a := monitor.Endpoints()[0]
					if assert.Equal(t, tc.avoided > 0, a.Full); tc.avoided == 0 {
						continue
					}
					assert.Equal(t, map[string]int{"a": n + 1, "b": 2*n + 1}, sent)
					time.Sleep(tc.avoided - 1)
					ask()
					assert.Equal(t, map[string]int{"a": n + 1, "b": 2*n + 2}, sent, "not yet")
					time.Sleep(time.Nanosecond)
					if !tc.full {
						return
					}
				}
				assert.Equal(t, !tc.full, monitor.Endpoints()[0].State.Out())
				if tc.full {
					require.NoError(t, router.Remove("b"))
					sent = map[string]int{}
					for range 5 {
						assert.Equal(t, tc.made, ask().Header.Get("Retry-After"))
					}
					assert.Equal(t, map[string]int{"a": 5}, sent, "nobody else may serve it")
				}
			})
		})
	}
}

// What one client has asked too much of a server is nothing to others, who have keys of their own there. Where a
// server does not say for how long, it is full.
func TestALimitOfOneClient(t *testing.T) {
	for said, want := range map[string]int{"30": 1 + 2, "": 1} {
		limited := startEngine(t, func(w http.ResponseWriter, r *http.Request, body []byte) bool {
			w.Header().Set("Retry-After", said)
			return r.Header.Get("Authorization") == "x" && status(429)(w, r, body)
		})
		clock := func() time.Time { return time.Unix(1000, 0) }
		w := newWorldOf(t, transport.Config{}, endpick.Config{Clock: clock}, limited.URL, startEngine(t, nil).URL)
		for _, key := range []string{"x", "y", "x", "", "x"} {
			w.ok(t, post(t, chatPath, chatStream, "Authorization", key))
		}
		assert.EqualValues(t, want, limited.requests.Load(), said)
	}
}

// Where all are full, a client is told so in the way that makes it ask again, also if engines say it in
// an event.
func TestAllAreFull(t *testing.T) {
	full := sse("data: {\"error\":{\"message\":\"busy\",\"code\":503}}\n\n" + done)
	w, reported := watched(t, transport.Config{}, startEngine(t, full).URL, startEngine(t, full).URL)
	resp, body := w.gets(t, 503, post(t, chatPath, chatStream))
	o := next(t, reported)
	assert.Equal(t, []any{503, "failed", []string{"a full 200", "b full 200"}}, []any{o.Code(), o.Status, way(o)})
	assert.Equal(t, []any{"application/json", "1"}, []any{resp.Header.Get("Content-Type"), resp.Header.Get("Retry-After")})
	assert.Contains(t, body, `"message":"all model servers are full"`)
	w.idle(t)
}
