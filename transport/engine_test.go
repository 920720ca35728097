package transport_test

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/require"
)

// handler answers a request, whose body has been read, or returns false.
type handler = func(w http.ResponseWriter, r *http.Request, body []byte) bool

// engine is a model server that speaks OpenAI's API over real HTTP. handle may
// take over a request; otherwise the response is words.
type engine struct {
	*httptest.Server
	handle   handler
	requests atomic.Int64

	mu     sync.Mutex
	bodies [][]byte
	last   *http.Request
}

var words = []string{"Once", " upon", " a", " time"}

func startEngine(t testing.TB, handle handler) *engine {
	e := &engine{handle: handle}
	e.Server = httptest.NewServer(e)
	t.Cleanup(e.Server.Close)
	return e
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	e.requests.Add(1)
	e.mu.Lock()
	e.bodies = append(e.bodies, body)
	e.last = r
	e.mu.Unlock()
	if e.handle != nil && e.handle(w, r, body) {
		return
	}
	answer(w, body, 0)
}

func (e *engine) lastBody() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.bodies) == 0 {
		return ""
	}
	return string(e.bodies[len(e.bodies)-1])
}

type ask struct {
	Stream        bool `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

const usageJSON = `{"prompt_tokens":100,"completion_tokens":4,"total_tokens":104,"prompt_tokens_details":{"cached_tokens":64}}`

// answer streams the words, or sends them in one response.
func answer(w http.ResponseWriter, body []byte, pause time.Duration) {
	var q ask
	_ = json.Unmarshal(body, &q)
	if !q.Stream {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}],"usage":%s}`,
			strings.Join(words, ""), usageJSON)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	send := func(s string) {
		fmt.Fprintf(w, "data: %s\n\n", s)
		w.(http.Flusher).Flush()
	}
	send(`{"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`)
	for _, word := range words {
		time.Sleep(pause)
		send(fmt.Sprintf(`{"id":"x","choices":[{"index":0,"delta":{"content":%q},"finish_reason":null}]}`, word))
	}
	send(`{"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`)
	if q.StreamOptions.IncludeUsage {
		send(`{"id":"x","choices":[],"usage":` + usageJSON + `}`)
	}
	send("[DONE]")
}

// startH2C is a server of HTTP/2 in the clear, by its address, with the number of connections to it.
func startH2C(t testing.TB, handle http.Handler) (address string, open *atomic.Int64) {
	s := httptest.NewUnstartedServer(handle)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	open = new(atomic.Int64)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed:
			open.Add(-1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return "h2c://" + s.Listener.Addr().String(), open
}

// says answers every request with one body.
func says(kind, body string) handler {
	return func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, body)
		return true
	}
}

// sse answers with a stream of exactly these bytes.
func sse(stream string) handler { return says("text/event-stream", stream) }

// status answers with a status, and a body that names it unless there is one.
func status(code int, body ...string) handler {
	return func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.WriteHeader(code)
		_, _ = io.WriteString(w, cmp.Or(strings.Join(body, ""), fmt.Sprintf(`{"error":{"code":%d}}`, code)))
		return true
	}
}

// breaksOff answers with pieces of a body, and breaks the connection.
func breaksOff(kind string, pieces ...string) handler {
	return func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		for _, p := range pieces {
			says(kind, p)(w, nil, nil)
			_ = http.NewResponseController(w).Flush()
		}
		panic(http.ErrAbortHandler)
	}
}

// hangs answers with the beginning of a stream, if any, and then nothing until its client leaves.
func hangs(beginning ...string) handler {
	return func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		for _, p := range beginning {
			sse(p)(w, r, nil)
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
		return true
	}
}

// upgrades switches to another protocol, which is what talk makes of it.
func upgrades(talk func(*bufio.ReadWriter)) handler {
	return func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		conn, buf, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return true
		}
		defer conn.Close()
		fmt.Fprint(buf, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		buf.Flush()
		talk(buf)
		buf.Flush()
		return true
	}
}

// echo sends a line back.
func echo(c *bufio.ReadWriter) {
	line, _ := c.ReadString('\n')
	fmt.Fprint(c, line)
}

// upgrade is a request to switch to another protocol.
func upgrade(t testing.TB, model string) *http.Request {
	req := getting("/v1/realtime?model=" + model)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	return req
}

// observer records how requests ended.
type observer struct {
	mu       sync.Mutex
	outcomes []endpick.Outcome // without their blocks, which are in said
	said     [][]uint64
	events   []endpick.Event
	requests []endpick.Request
	blocks   [][]uint64
}

func (o *observer) Match(*endpick.Request, []endpick.Candidate) {}
func (o *observer) Routed(e *endpick.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.requests = append(o.requests, *e.Request)
	o.blocks = append(o.blocks, append([]uint64(nil), e.Request.Blocks...))
}
func (o *observer) Done(e *endpick.Event, out *endpick.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.said = append(o.said, append([]uint64(nil), out.Blocks...))
	plain := *out
	plain.Blocks = nil
	o.outcomes = append(o.outcomes, plain)
	o.events = append(o.events, *e)
}

func (o *observer) all() []endpick.Outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]endpick.Outcome(nil), o.outcomes...)
}

// world is a transport over a router with engines, and its observers.
type world struct {
	router   *endpick.Router
	monitor  *health.Monitor
	t        *transport.Transport
	client   *http.Client
	observer *observer

	mu       sync.Mutex
	records  []recording.Request
	warnings []error
}

// inOrder picks the first endpoint by ID, so that tests can predict the choice.
var inOrder = scores(func(_ *endpick.Request, cs []endpick.Candidate, dst []float64) {
	for i := range cs {
		dst[i] = 1 / (1 + float64(cs[i].Endpoint.ID[0]))
	}
})

func newWorld(t testing.TB, config transport.Config, addresses ...string) *world {
	return newWorldOf(t, config, endpick.Config{}, addresses...)
}

func newWorldOf(t testing.TB, config transport.Config, of endpick.Config, addresses ...string) *world {
	w := &world{observer: &observer{}}
	for i, a := range addresses {
		of.Endpoints = append(of.Endpoints, endpick.Endpoint{ID: string(rune('a' + i)), Address: a})
	}
	if of.Policy.Matcher = w.observer; of.Policy.Scorers == nil {
		of.Policy.Scorers = []endpick.Weighted{{Scorer: inOrder, Weight: 1}}
	}
	w.router = rig.Must(endpick.New(of))
	w.monitor = rig.Must(health.New(health.Config{Router: w.router}))
	config.Router, config.Health = w.router, cmp.Or(config.Health, w.monitor)
	if config.Pass == nil {
		config.Pass = []string{"/"}
	}
	if config.Record == nil {
		config.Record = func(r recording.Request) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.records = append(w.records, r)
		}
	}
	if config.Warn == nil {
		config.Warn = func(_ *http.Request, err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.warnings = append(w.warnings, err)
		}
	}
	w.t = rig.Must(transport.New(config))
	t.Cleanup(w.t.CloseIdleConnections)
	w.client = &http.Client{Transport: w.t}
	return w
}

func post(t testing.TB, path, body string, headers ...string) *http.Request {
	req := rig.Must(http.NewRequest(http.MethodPost, "http://gateway"+path, strings.NewReader(body)))
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	return req
}

func getting(path string) *http.Request {
	return rig.Must(http.NewRequest(http.MethodGet, "http://gateway"+path, nil))
}

// do sends a request and reads the response to its end.
func (w *world) do(t testing.TB, req *http.Request) (*http.Response, string, error) {
	resp, err := w.client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

// gets is do for requests that must be answered with a status.
func (w *world) gets(t testing.TB, status int, req *http.Request) (*http.Response, string) {
	t.Helper()
	resp, body, err := w.do(t, req)
	require.NoError(t, err)
	require.Equal(t, status, resp.StatusCode, body)
	return resp, body
}

// ok is gets for requests that must succeed.
func (w *world) ok(t testing.TB, req *http.Request) (*http.Response, string) {
	t.Helper()
	return w.gets(t, 200, req)
}

// zipped is a text in gzip.
func zipped(text string) string {
	var b strings.Builder
	z := gzip.NewWriter(&b)
	rig.Must(io.WriteString(z, text))
	z.Close()
	return b.String()
}

// add adds an endpoint.
func (w *world) add(t testing.TB, id, address string, models ...string) {
	require.NoError(t, w.router.Add(endpick.Endpoint{ID: id, Address: address, Models: models}))
}

// answered is what a base of a test answers.
func answered(status int, kind, body string) (*http.Response, error) {
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(strings.NewReader(body))}, nil
}

// record returns the only record there is.
func (w *world) record(t testing.TB) recording.Request {
	require.Eventually(t, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.records) > 0 }, 30*time.Second, time.Millisecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Len(t, w.records, 1)
	return w.records[0]
}

// outcome waits for the only outcome.
func (w *world) outcome(t testing.TB) endpick.Outcome {
	require.Eventually(t, func() bool { return len(w.observer.all()) > 0 }, 30*time.Second, time.Millisecond)
	all := w.observer.all()
	require.Len(t, all, 1)
	return all[0]
}

// idle checks that nothing is in flight any more.
func (w *world) idle(t testing.TB) {
	t.Helper()
	rig.Idle(t, w.router)
}

// settled waits until there are no more goroutines than at the start, plus a
// few of the runtime.
func settled(t testing.TB, before int) {
	deadline := time.Now().Add(30 * time.Second)
	for runtime.NumGoroutine() > before+3 {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
		time.Sleep(5 * time.Millisecond)
	}
}

const (
	chatPath    = "/v1/chat/completions"
	chatStream  = `{"model":"m","stream":true,"messages":[{"role":"user","content":"Tell me a story that begins as all stories do."}]}`
	chatAtOnce  = `{"model":"m","messages":[{"role":"user","content":"Tell me a story that begins as all stories do."}]}`
	completions = "/v1/completions"
)
