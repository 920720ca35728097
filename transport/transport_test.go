package transport_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/slo"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/slo/quota"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/recording"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConfig(t *testing.T) {
	router := rig.Must(endpick.New(endpick.Config{}))
	negative := map[string]transport.Config{
		"Router":           {},
		"MaxBodyBytes":     {Router: router, MaxBodyBytes: -1},
		"MaxAttempts":      {Router: router, MaxAttempts: -1},
		"MaxItems":         {Router: router, MaxItems: -1},
		"RetryShare":       {Router: router, RetryShare: 2},
		"RetryBurst":       {Router: router, RetryBurst: -1},
		"UpgradeTimeout":   {Router: router, UpgradeTimeout: -1},
		"KeepAlive":        {Router: router, KeepAlive: -1},
		"FirstByteTimeout": {Router: router, FirstByteTimeout: -1},
		"StallTimeout":     {Router: router, StallTimeout: -1},
		"ResponseTimeout":  {Router: router, ResponseTimeout: -1},
		"Fallbacks":        {Router: router, Fallbacks: 1},
		"Queue":            {Router: router, Queue: &transport.QueueConfig{Bounds: queue.Config{Timeout: -1}}},
	}
	for field, c := range negative {
		want := "transport.Config." + field
		if field == "Queue" {
			want = "queue.Config.Timeout"
		}
		assert.Equal(t, want, rig.Field(transport.New(c)))
	}
	negative["Fallbacks"] = transport.Config{Router: router, Fallbacks: -1}
	negative["Observe"] = transport.Config{Router: router, Observe: func(*transport.Observation) {}}
	for field, c := range negative { // what is for sending only is refused whatever it says
		assert.Equal(t, "transport.Config."+field, rig.Field(transport.NewDispatcher(c)))
	}
	assert.NoError(t, rig.Err(transport.New(transport.Config{Router: router})))
	require.NoError(t, router.Add(endpick.Endpoint{ID: "10.0.0.1:8000"}))
	_, err := transport.New(transport.Config{Router: router})
	assert.EqualError(t, err, `endpick: config: transport.Config.Router has endpoint "10.0.0.1:8000", which has no Address`)
}

func TestStream(t *testing.T) {
	e := startEngine(t, nil)
	w := newWorld(t, transport.Config{EnableEndpointHeader: true}, e.URL)
	resp, body := w.ok(t, post(t, chatPath, chatStream))
	assert.Equal(t, "a", resp.Header.Get(transport.EndpointHeader))
	assert.Contains(t, e.lastBody(), `"stream_options":{"include_usage":true}`)
	assert.NotContains(t, body, "usage", "the client did not ask for it")
	assert.Contains(t, body, "upon")
	assert.True(t, strings.HasSuffix(body, "data: [DONE]\n\n"))
	assert.Equal(t, endpick.Outcome{InputTokens: 100, OutputTokens: 4, CachedTokens: 64, HasCachedTokens: true}, w.outcome(t))
	w.idle(t)

	_, hasTTFT := w.observer.events[0].TTFT()
	assert.True(t, hasTTFT)
	r := w.record(t)
	require.NotNil(t, r.TTFTMillis)
	require.NotNil(t, r.CachedTokens)
	assert.Equal(t, 64, *r.CachedTokens)
	assert.Equal(t, "completed", r.Status)
	assert.Equal(t, []any{"m", "a", 200, 1, true, 100, 4, false},
		[]any{r.Model, r.Endpoint, r.HTTP, r.Attempts, r.Stream, r.InputTokens, r.OutputTokens, r.Estimated})
}

func TestHeadersAndDescription(t *testing.T) {
	e := startEngine(t, nil)
	w := newWorld(t, transport.Config{
		Describe: func(in *http.Request, body []byte, req *endpick.Request) {
			assert.Equal(t, "m", req.Model)
			assert.Equal(t, chatAtOnce, string(body))
			req.Tenant = in.Header.Get("X-Team")
		},
	}, e.URL)
	w.ok(t, post(t, chatPath, chatAtOnce, "x-slo-ttft-ms", "200", "x-slo-tpot-ms", "50",
		transport.PriorityHeader, "-2", transport.SessionHeader, "s1", "X-Team", "red"))
	got := w.observer.requests[0]
	assert.Equal(t, endpick.SLO{TTFT: 200 * time.Millisecond, TPOT: 50 * time.Millisecond}, got.SLO)
	assert.Equal(t, []any{-2, "s1", "red"}, []any{got.Priority, got.Session, got.Tenant})
	assert.Empty(t, w.warnings)
	r := w.record(t)
	assert.Equal(t, 200.0, r.SLOTTFTMillis)
	assert.NotZero(t, r.Tenant)
}

func TestMalformedHeadersAreReportedAndNotFatal(t *testing.T) {
	w := newWorld(t, transport.Config{}, startEngine(t, nil).URL)
	w.ok(t, post(t, chatPath, chatAtOnce, "x-slo-ttft-ms", "soon", "x-slo-tpot-ms", "50", transport.PriorityHeader, "high"))
	got := w.observer.requests[0]
	assert.Equal(t, endpick.SLO{TPOT: 50 * time.Millisecond}, got.SLO)
	assert.Zero(t, got.Priority)
	require.Len(t, w.warnings, 2)
	assert.ErrorAs(t, w.warnings[0], new(*slo.HeaderError))
	assert.ErrorAs(t, w.warnings[1], new(*endpick.RequestError))
	_, _, err := w.do(t, post(t, chatPath, chatAtOnce, transport.PriorityHeader, "high", transport.SessionHeader, strings.Repeat("s", 257)))
	require.Error(t, err)
	assert.Len(t, w.warnings, 3, "of a refused request, too")
}

// A request without a model may go anywhere; the policy chooses, as for any other.
func TestWithoutAModelAnyEndpointServes(t *testing.T) {
	a, b := startEngine(t, nil), startEngine(t, nil)
	w := newWorldOf(t, transport.Config{}, endpick.Config{Policy: endpick.Policy{Scorers: []endpick.Weighted{{Scorer: scorer.LeastLoaded(), Weight: 1}}}})
	w.add(t, "a", a.URL, "x")
	w.add(t, "b", b.URL, "y")
	busy := rig.Must(w.router.Route(endpick.Request{Model: "x"}))
	defer busy.Done(endpick.Outcome{})
	resp, _ := w.ok(t, getting("/version"))
	assert.Equal(t, "b", w.record(t).Endpoint)
	assert.Empty(t, resp.Header.Get(transport.EndpointHeader), "nobody asked for it")

	_, _, err := w.do(t, post(t, chatPath, strings.Replace(chatAtOnce, `"m"`, `"z"`, 1)))
	assert.ErrorAs(t, err, new(*endpick.NoEndpointError), "a model that nobody serves is not replaced")
	assert.Equal(t, 404, transport.StatusOf(err))
}

var errBroke = errors.New("broke")

// later is the reason of a host's own Admitter.
type later struct{ message string }

func (later) Error() string                      { return "mine: broke" }
func (l later) Refusal() (string, time.Duration) { return l.message, 7 * time.Second }

// What a client is told of an error: a status, when to try again, if that may help, and of a
// refusal why.
func TestErrorHandler(t *testing.T) {
	dial, read := &net.OpError{Op: "dial", Err: errBroke}, &net.OpError{Op: "read", Err: errBroke}
	limited := &queue.RateLimitError{Need: 2, Have: 1, RetryAfter: 20 * time.Millisecond}
	for _, tc := range []struct {
		err    error
		status int
		retry  string
		says   string
	}{
		{&http.MaxBytesError{Limit: 1}, 413, "", ""},
		{&endpick.RejectedError{Reason: errBroke}, 429, "", "broke"},
		{&endpick.NoEndpointError{Model: "m", Endpoints: 1}, 404, "", ""},
		{&endpick.NoEndpointError{Model: "m", Endpoints: 2, Serving: 1, Draining: 1}, 503, "2", ""},
		{&endpick.NoEndpointError{Model: "m"}, 503, "2", ""}, // an empty fleet says nothing of the model
		{&endpick.NoEndpointError{Endpoints: 1}, 503, "2", ""},
		{&endpick.NoEndpointError{}, 503, "2", ""},
		{&transport.UpstreamError{Err: transport.ErrTimeout}, 504, "", ""},
		{context.DeadlineExceeded, 504, "", ""},
		{context.Canceled, 499, "", ""},
		{&endpick.RequestError{}, 400, "", ""},
		{fmt.Errorf("%w: %w", transport.ErrRead, &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}), 408, "", ""},
		{&transport.UpstreamError{Err: read}, 502, "", ""},
		{&transport.UpstreamError{Err: errBroke}, 502, "", ""},
		{&transport.UpstreamError{Err: dial}, 503, "2", ""}, // nobody is there
		{&queue.Error{Reason: queue.ErrFull}, 429, "1", "all servers are busy, and too many requests wait already"},
		{&queue.Error{Reason: queue.ErrShed, Waited: 1500 * time.Millisecond}, 429, "2", ""},
		{&queue.Error{Reason: queue.ErrTimeout, Waited: time.Hour}, 503, "60", ""},
		{&queue.Error{Reason: queue.ErrTooLarge}, 413, "", ""},
		{&endpick.RejectedError{Reason: limited}, 429, "1", "the rate limit is reached: try again in 20ms"},
		{&endpick.RejectedError{Reason: &queue.RateLimitError{Need: 2, Have: 1}}, 429, "", "the prompt is longer than the rate limit allows at any time"},
		{&endpick.RejectedError{Reason: &slo.UnattainableError{}}, 429, "", "no server can meet the latency targets of the request"},
		{&endpick.RejectedError{Reason: &queue.SaturatedError{}}, 429, "", "all servers are busy, and the request's priority is too low to wait"},
		{&endpick.RejectedError{Reason: &quota.Error{RetryAfter: 2500 * time.Millisecond}}, 429, "3", "the rate limit is reached: try again in 2.5s"},
		{&endpick.RejectedError{Reason: &quota.Error{Requests: 4, RetryAfter: time.Second}}, 429, "1", "too many requests at once: 4 are running, and more are not allowed"},
		{&endpick.RejectedError{Reason: later{"come back on Monday"}}, 429, "7", "come back on Monday"},
		{&endpick.RejectedError{Reason: later{}}, 429, "7", "Too Many Requests"},
	} {
		assert.Equal(t, tc.status, transport.StatusOf(tc.err), "%v", tc.err)
		rec := httptest.NewRecorder()
		rec.Header().Set("Content-Encoding", "gzip") // which the response was to have, but an error is plain text
		transport.ErrorHandler(rec, nil, tc.err)
		assert.Equal(t, tc.status, rec.Code)
		assert.Equal(t, tc.retry, rec.Header().Get("Retry-After"), "%v", tc.err)
		assert.Equal(t, "application/json", rec.Header().Get("Content-Type"))
		assert.NotContains(t, rec.Header(), "Content-Encoding")
		assert.Contains(t, rec.Body.String(), `"error":{"message":"`+tc.says)
		if tc.status >= 500 {
			assert.NotContains(t, rec.Body.String(), "broke", "what happens inside is not told")
		}
	}
	assert.Equal(t, 200, transport.StatusOf(nil))
}

// A panic in a callback costs only the work it was called for, on whatever
// goroutine it runs: when the response ends, or when the client leaves.
func TestPanicsOfCallbacksAreContained(t *testing.T) {
	record, warn := func(recording.Request) { panic("boom") }, func(*http.Request, error) { panic("boom") }
	describe := func(*http.Request, []byte, *endpick.Request) { panic("boom") }
	tokens := func(context.Context, *endpick.Request, string, []byte) ([]uint32, int) { panic("boom") }
	for _, tc := range []struct {
		name   string
		config transport.Config
		stage  string // "": no place to report it
		status int
	}{
		{"Record", transport.Config{Record: record}, "transport.Config.Record", 200},
		{"Observe", transport.Config{Observe: func(*transport.Observation) { panic("boom") }}, "transport.Config.Observe", 200},
		{"Warn", transport.Config{Warn: warn}, "", 200},
		{"Describe", transport.Config{Describe: describe}, "transport.Config.Describe", 500},
		{"Tokens", transport.Config{Tokens: tokens}, "transport.Config.Tokens", 200},
		{"Record and Warn", transport.Config{Record: record, Warn: warn}, "", 200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := startEngine(t, func(w http.ResponseWriter, r *http.Request, body []byte) bool {
				return r.Header.Get("X-Mood") != "" && hangs(role+delta(`"content":"Once"`))(w, r, body)
			})
			w := newWorld(t, tc.config, e.URL)
			_, _, err := w.do(t, post(t, chatPath, chatStream, transport.PriorityHeader, "x"))
			if tc.status == 200 {
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(context.Background())
				resp := rig.Must(w.client.Do(post(t, chatPath, chatStream, "X-Mood", "hang", transport.PriorityHeader, "x").WithContext(ctx)))
				rig.Must(io.ReadFull(resp.Body, make([]byte, len(role))))
				cancel() // no reader: the exchange ends on a goroutine of its own
				require.Eventually(t, func() bool { return len(w.observer.all()) == 2 }, 30*time.Second, time.Millisecond)
				assert.Equal(t, endpick.Completed, w.observer.all()[0].Status)
				assert.Equal(t, endpick.Canceled, w.observer.all()[1].Status)
				resp.Body.Close()
			} else {
				var p *endpick.PanicError
				require.ErrorAs(t, err, &p)
				assert.Equal(t, tc.status, transport.StatusOf(err))
				assert.Empty(t, w.observer.all(), "it was not sent")
			}
			w.idle(t)
			require.Eventually(t, func() bool { return w.t.Stats().Panics >= 1 }, 30*time.Second, time.Millisecond)
			if tc.stage != "" {
				w.mu.Lock()
				defer w.mu.Unlock()
				var p *endpick.PanicError
				require.ErrorAs(t, errors.Join(w.warnings...), &p)
				assert.Contains(t, string(p.Stack), "transport_test.go", "where it was")
				p.Stack = nil
				assert.Equal(t, &endpick.PanicError{Stage: tc.stage, Value: "boom"}, p)
			}
		})
	}
}

func TestNamesThatCannotBeAreRefused(t *testing.T) {
	e := startEngine(t, nil)
	long, half := strings.Repeat("é", 128), "llama\xc3"
	for name, tc := range map[string]struct {
		model, session, adapter, tenant string
		field                           string // empty if the request is served
	}{
		"all as long as can be": {long, long, long, long, ""},
		"none":                  {"", "", "", "", ""},
		"model too long":        {long + "m", "", "", "", "model"},
		"session too long":      {"m", long + "s", "", "", transport.SessionHeader},
		"adapter too long":      {"m", "", long + "a", "", "adapter"},
		"tenant too long":       {"m", "", "", long + "t", "tenant"},
		"model cut":             {half, "", "", "", "model"},
		"one byte":              {"\xff", "", "", "", "model"},
		"session cut":           {"m", half, "", "", transport.SessionHeader},
		"adapter cut":           {"m", "", half, "", "adapter"},
		"tenant cut":            {"m", "", "", half, "tenant"},
	} {
		t.Run(name, func(t *testing.T) {
			before := e.requests.Load()
			w := newWorld(t, transport.Config{Describe: func(_ *http.Request, _ []byte, req *endpick.Request) {
				assert.False(t, req.Model == half || len(req.Model) > 256 || req.Session == half, "a host need not reckon with it")
				req.Adapter, req.Tenant = tc.adapter, tc.tenant
			}}, e.URL)
			req := post(t, completions, `{"stream":true,"prompt":"x","model":"`+tc.model+`"}`)
			if tc.session != "" {
				req.Header[transport.SessionHeader] = []string{tc.session}
			}
			_, _, err := w.do(t, req)
			if tc.field == "" {
				require.NoError(t, err)
				assert.Equal(t, before+1, e.requests.Load())
				return
			}
			var bad *endpick.RequestError
			require.ErrorAs(t, err, &bad)
			assert.Equal(t, tc.field, bad.Field)
			assert.Equal(t, 400, transport.StatusOf(err))
			assert.Equal(t, before, e.requests.Load(), "no engine gets to see it")
			w.idle(t)
		})
	}
}

// A compressed body, or a model in a form, is routed like any other, and the
// engine gets a body it can read.
func TestPackedBodiesAndFormsAreRouted(t *testing.T) {
	e := startEngine(t, nil)
	w := newWorld(t, transport.Config{Describe: func(in *http.Request, body []byte, _ *endpick.Request) {
		if in.Header.Get("Content-Encoding") == "gzip" {
			assert.Equal(t, chatStream, string(body), "a host gets it unpacked")
		}
	}})
	w.add(t, "a", e.URL, "m")
	packed := zipped(chatStream)
	w.ok(t, post(t, chatPath, packed, "Content-Encoding", "gzip", "Content-Type", "application/json"))
	assert.Equal(t, `{"stream_options":{"include_usage":true},`+chatStream[1:], e.lastBody())
	assert.Empty(t, e.last.Header.Get("Content-Encoding"))
	assert.True(t, w.observer.requests[0].Stream)
	assert.Equal(t, "m", w.observer.requests[0].Model)

	// A body with an unknown coding is refused, unless it is not in it: engines ignore the header.
	for coding, status := range map[string]int{"br": 415, "gzip, br": 415, "gzip, gzip": 415, "": 400} {
		_, _, err := w.do(t, post(t, chatPath, packed, "Content-Encoding", coding))
		assert.Equal(t, status, transport.StatusOf(err), coding)
	}
	w.ok(t, post(t, "/v1/files", packed, "Content-Encoding", "br"))
	assert.Equal(t, packed, e.lastBody())
	assert.Equal(t, "br", e.last.Header.Get("Content-Encoding"))
	w.ok(t, post(t, chatPath, chatStream, "Content-Encoding", "br"))
	assert.Equal(t, "m", w.observer.requests[2].Model)

	form := "--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--x--"
	w.ok(t, post(t, "/v1/audio/transcriptions", form, "Content-Type", "multipart/form-data; boundary=x"))
	assert.Equal(t, form, e.lastBody())
	assert.Equal(t, "m", w.observer.requests[3].Model)
	w.idle(t)
}

// A body is closed even if its request is refused: a client that writes to a pipe waits for
// that.
func TestBodiesAreClosedWhateverIsRefused(t *testing.T) {
	w := newWorld(t, transport.Config{MaxBodyBytes: 1 << 10, Pass: []string{"/v1/files"}}, startEngine(t, nil).URL)
	for _, tc := range []struct{ name, method, path, body string }{
		{"served", "POST", chatPath, chatAtOnce},
		{"a path that climbs", "POST", "/v1/../x", "{}"},
		{"an unknown path", "POST", "/x", "{}"},
		{"too long", "POST", chatPath, strings.Repeat("x", 2<<10)},
		{"too long, as announced", "POST", chatPath, ""},
		{"a name that is none", "POST", chatPath, `{"model":1}`},
		{"a model that nobody has", "GET", "/v1/models/x", "{}"},
		{"the models", "GET", "/v1/models", "{}"},
	} {
		var open atomic.Int32
		open.Store(1)
		req := rig.Must(http.NewRequest(tc.method, "http://gateway"+tc.path, nil))
		req.Body = &closing{ReadCloser: io.NopCloser(strings.NewReader(tc.body)), open: &open}
		if req.ContentLength = int64(len(tc.body)); tc.body == "" {
			req.ContentLength = 1 << 20
		}
		if resp, err := w.t.RoundTrip(req); err == nil {
			resp.Body.Close()
		}
		assert.Zero(t, open.Load(), tc.name)
	}
}

var testKey = rig.Must(prefix.ParseKey(strings.Repeat("5e", 32)))

// With another key a prompt has other blocks, and with the old one the old ones again.
func TestSetHashKey(t *testing.T) {
	w := newWorld(t, transport.Config{HashKey: testKey}, startEngine(t, nil).URL)
	body := `{"model":"m","prompt":"` + strings.Repeat("A long prompt. ", 100) + `"}`
	for i, key := range []prefix.Key{testKey, testKey, prefix.NewKey(), testKey} {
		w.t.SetHashKey(key)
		w.ok(t, post(t, completions, body))
		assert.Equal(t, i != 2, w.observer.blocks[i][0] == w.observer.blocks[0][0], "%d", i)
	}
}

// The hashes of a prompt's blocks depend on the key, the model, the adapter,
// the tenant and the salt, each by itself, even if they look alike.
func TestBlocksAreThoseOfTheScope(t *testing.T) {
	text := strings.Repeat("the same words again and again ", 20)
	e := startEngine(t, nil)
	scoped := func(in *http.Request, _ []byte, req *endpick.Request) {
		req.Tenant, req.Adapter = in.Header.Get("X-Team"), in.Header.Get("X-Adapter")
	}
	for _, of := range []struct {
		shared bool
		key    prefix.Key
	}{{false, testKey}, {true, testKey}, {}} { // without a key, the process's is used
		w := newWorld(t, transport.Config{HashKey: of.key, SharedCache: of.shared, Describe: scoped}, e.URL)
		seen := map[uint64]prefix.Scope{}
		for i, tc := range []struct{ model, adapter, tenant, salt string }{
			{model: "m"}, {model: "n"},
			{model: "m", adapter: "n"}, {model: "m", adapter: "B"},
			{model: "m", tenant: "B"}, {model: "m", tenant: "C"},
			// A salt that is the tenant's name in JSON quotes; the bare name; the name as both.
			{model: "m", salt: `\"B\"`}, {model: "m", salt: "B"}, {model: "m", tenant: "B", salt: "B"},
			{model: "m", tenant: "B", salt: "x"}, {model: "m", tenant: "Bx"}, {model: "m", salt: "Bx"},
			{model: "m", adapter: "B", tenant: "B", salt: "x"},
		} {
			as := [...]string{"cache_salt", "extra_key", "lora_path"}[i%3]
			body := `{"model":"` + tc.model + `","` + as + `":"` + tc.salt + `","lora_path":null,"prompt":"` + text + `"}`
			w.ok(t, post(t, completions, body, "X-Team", tc.tenant, "X-Adapter", tc.adapter))
			want := prefix.Scope{Key: of.key, Model: tc.model, Adapter: tc.adapter, Salt: strings.ReplaceAll(tc.salt, `\`, "")}
			if !of.shared {
				want.Tenant = tc.tenant
			}
			got := w.observer.blocks[i]
			require.Equal(t, prefix.AppendText(nil, want.Seed(), text), got, "%+v", tc)
			other, ok := seen[got[0]]
			require.Equal(t, ok, other == want, "%+v and %+v", want, other)
			seen[got[0]] = want
		}
	}
}

const (
	role      = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	finish    = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	brokenOff = `data: {"error":{"message":"the model server failed before the end of its answer","type":"api_error","param":null,"code":"502"}}` + "\n\n"
	done      = "data: [DONE]\n\n"
)

func delta(fields string) string {
	return `data: {"choices":[{"index":0,"delta":{` + fields + `}}]}` + "\n\n"
}

// A body may come byte by byte, and its last bytes together with the error.
func TestBodiesComeInAnyPieces(t *testing.T) {
	stream := role + delta(`"content":"Once"`) + finish + `data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}}` + "\n\n" + done
	object := `{"choices":[{"message":{"content":"Once"}}],"usage":{"prompt_tokens":7,"completion_tokens":5}}`
	pieces := map[string]func(io.Reader) io.Reader{
		"whole":                   func(r io.Reader) io.Reader { return r },
		"byte by byte":            iotest.OneByteReader,
		"half by half":            iotest.HalfReader,
		"data with the error":     iotest.DataErrReader,
		"bytes, the last with it": func(r io.Reader) io.Reader { return iotest.DataErrReader(iotest.OneByteReader(r)) },
		"nothing, then a byte": func(r io.Reader) io.Reader {
			r, calls := iotest.OneByteReader(r), 0
			return rig.Reader(func(p []byte) (int, error) {
				if calls++; calls%2 == 1 {
					return 0, nil
				}
				return r.Read(p)
			})
		},
	}
	for name, in := range pieces {
		for _, tc := range []struct {
			request, kind, body, passed string
			breaks                      error
		}{
			{chatStream, "text/event-stream", stream, role + delta(`"content":"Once"`) + finish + done, nil},
			{chatStream, "text/event-stream", stream[:len(stream)-40], role + delta(`"content":"Once"`) + finish + brokenOff, io.ErrUnexpectedEOF},
			{chatStream, "Text/Event-Stream; charset=utf-8, text/event-stream", stream, role + delta(`"content":"Once"`) + finish + done, nil},
			{chatStream, "application/json", stream, role + delta(`"content":"Once"`) + finish + done, nil},
			{chatStream, "text/plain", ": ping\n\n" + stream, ": ping\n\n" + role + delta(`"content":"Once"`) + finish + done, nil},
			{chatAtOnce, "application/json", object, object, nil},
			{chatAtOnce, "application/json", object[:len(object)-1], "", io.ErrUnexpectedEOF},
		} {
			t.Run(name, func(t *testing.T) {
				body := io.Reader(strings.NewReader(tc.body))
				if tc.breaks != nil {
					body = io.MultiReader(body, iotest.ErrReader(tc.breaks))
				}
				w := newWorld(t, transport.Config{Base: rig.RoundTrip(func(*http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {tc.kind}}, Body: io.NopCloser(in(body))}, nil
				})}, "x:1")
				_, got, err := w.do(t, post(t, chatPath, tc.request))
				assert.Equal(t, tc.passed, got)
				require.ErrorIs(t, err, tc.breaks)
				out := w.outcome(t)
				if tc.breaks == nil {
					assert.Equal(t, endpick.Outcome{InputTokens: 7, OutputTokens: 5}, out)
				} else {
					assert.Equal(t, endpick.Failed, out.Status)
					assert.ErrorContains(t, err, `transport: endpoint "a" (attempt 1): unexpected EOF`)
				}
				w.idle(t)
			})
		}
	}
}

// Tokens are counted as they arrive, and the first one ends the prefill.
func TestTokensAreCountedAsTheyCome(t *testing.T) {
	step := make(chan string)
	e := startEngine(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.Header().Set("Content-Type", "text/event-stream")
		for s := range step {
			io.WriteString(w, s)
			w.(http.Flusher).Flush()
		}
		return true
	})
	w := newWorld(t, transport.Config{}, e.URL)
	got := make(chan reply)
	go func() {
		resp, err := w.client.Do(post(t, chatPath, chatStream))
		got <- reply{resp, err}
	}()
	step <- role // which says nothing
	inFlight := func() endpick.InFlight { return w.router.Endpoints()[0].Candidate.InFlight }
	assert.Equal(t, 1, inFlight().Prefilling)
	assert.Positive(t, inFlight().PrefillTokens)
	long := delta(`"content":"` + strings.Repeat("x", 400) + `"`)
	step <- long
	r := <-got
	require.NoError(t, r.err)
	defer r.resp.Body.Close()
	read := func(want string) {
		b := make([]byte, len(want))
		rig.Must(io.ReadFull(r.resp.Body, b))
		require.Equal(t, want, string(b))
	}
	read(role)
	for i := 1; i <= 3; i++ {
		if i > 1 {
			step <- long
		}
		read(long)
		assert.Equal(t, 100*i, inFlight().OutputTokens)
		assert.Zero(t, inFlight().Prefilling)
		assert.Zero(t, inFlight().PrefillTokens)
	}
	step <- done
	close(step)
	rig.Must(io.ReadAll(r.resp.Body))
	w.idle(t)
}

// A client has a response without a body as soon as it has the header, and may be gone
// before its gateway reads further: so the response completes before it is handed
// over.
func TestClientThatStopsAtTheHeaderHasAll(t *testing.T) {
	for name, tc := range map[string]struct {
		method, path string
		answer       string
	}{
		"HEAD":                 {"HEAD", "/health", "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"},
		"HEAD, packed":         {"HEAD", chatPath, "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"},
		"of no length":         {"GET", "/health", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		"no content":           {"POST", chatPath, "HTTP/1.1 204 No Content\r\n\r\n"},
		"not modified":         {"GET", "/health", "HTTP/1.1 304 Not Modified\r\n\r\n"},
		"of no length, packed": {"POST", chatPath, "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n"},
	} {
		for leaves, leave := range map[string]func(cancel func(), body io.Closer){
			"cancels": func(cancel func(), _ io.Closer) { cancel() },
			"closes":  func(_ func(), body io.Closer) { body.Close() },
		} {
			t.Run(name+"/"+leaves, func(t *testing.T) {
				w := newWorld(t, transport.Config{}, startRaw(t, tc.answer))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				in := rig.Must(http.NewRequestWithContext(ctx, tc.method, "http://gateway"+tc.path, http.NoBody))
				if tc.method == "POST" {
					in = post(t, tc.path, chatAtOnce).WithContext(ctx)
				}
				resp := rig.Must(w.t.RoundTrip(in))
				leave(cancel, resp.Body)
				assert.Equal(t, endpick.Completed, w.outcome(t).Status)
				assert.Equal(t, "completed", w.record(t).Status)
				w.idle(t)
				resp.Body.Close()
			})
		}
	}
}

func TestCompressedResponses(t *testing.T) {
	for name, open := range map[string]func(io.Writer) io.WriteCloser{
		"gzip":        func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
		"deflate":     func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) },
		"raw deflate": func(w io.Writer) io.WriteCloser { return rig.Must(flate.NewWriter(w, flate.DefaultCompression)) },
	} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s stream=%v", name, stream), func(t *testing.T) {
				var accepts string
				e := startEngine(t, func(w http.ResponseWriter, r *http.Request, body []byte) bool {
					accepts = r.Header.Get("Accept-Encoding")
					w.Header().Set("Content-Encoding", strings.TrimPrefix(name, "raw "))
					var b bytes.Buffer
					z := open(&b)
					answer(&compressedWriter{ResponseWriter: w, z: z, b: &b}, body, 0)
					z.Close()
					w.Write(b.Bytes())
					return true
				})
				w := newWorld(t, transport.Config{}, e.URL)
				req := chatAtOnce
				if stream {
					req = chatStream
				}
				resp, body := w.ok(t, post(t, chatPath, req, "Accept-Encoding", "gzip, br"))
				assert.Equal(t, "identity", accepts)
				assert.Empty(t, resp.Header.Get("Content-Encoding"))
				assert.EqualValues(t, -1, resp.ContentLength)
				assert.Contains(t, body, "upon")
				assert.Equal(t, endpick.Outcome{InputTokens: 100, OutputTokens: 4, CachedTokens: 64, HasCachedTokens: true}, w.outcome(t))
			})
		}
	}
	t.Run("a coding that is not known passes as it is", func(t *testing.T) {
		e := startEngine(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			w.Header().Set("Content-Encoding", "br")
			return sse("\x01\x02\n\n\x03")(w, nil, nil)
		})
		w := newWorld(t, transport.Config{}, e.URL)
		resp, body := w.ok(t, post(t, chatPath, chatStream))
		assert.Equal(t, "br", resp.Header.Get("Content-Encoding"))
		assert.Equal(t, "\x01\x02\n\n\x03", body)
		assert.Equal(t, endpick.Outcome{}, w.outcome(t))
	})
	t.Run("what is no gzip is an error for the client", func(t *testing.T) {
		e := startEngine(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			w.Header().Set("Content-Encoding", "gzip")
			return sse("this is no gzip")(w, nil, nil)
		})
		w := newWorld(t, transport.Config{}, e.URL)
		_, _, err := w.do(t, post(t, chatPath, chatStream))
		assert.ErrorIs(t, err, gzip.ErrHeader)
		assert.Equal(t, endpick.Failed, w.outcome(t).Status)
		w.idle(t)
	})
}

// compressedWriter compresses each flush, as a server does.
type compressedWriter struct {
	http.ResponseWriter
	z io.WriteCloser
	b *bytes.Buffer
}

func (c *compressedWriter) Write(p []byte) (int, error) { return c.z.Write(p) }

func (c *compressedWriter) Flush() {
	c.z.(interface{ Flush() error }).Flush()
	c.ResponseWriter.Write(c.b.Bytes())
	c.b.Reset()
	c.ResponseWriter.(http.Flusher).Flush()
}

func TestCompressedEventsAreNotHeldUp(t *testing.T) {
	more := make(chan struct{})
	e := startEngine(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Content-Encoding", "gzip")
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		c := &compressedWriter{ResponseWriter: w, z: z, b: &b}
		io.WriteString(c, role)
		c.Flush()
		<-more
		io.WriteString(c, finish)
		z.Close()
		w.Write(b.Bytes())
		return true
	})
	resp := rig.Must(newWorld(t, transport.Config{}, e.URL).client.Do(post(t, chatPath, chatStream)))
	defer resp.Body.Close()
	got := make([]byte, len(role))
	rig.Must(io.ReadFull(resp.Body, got))
	assert.Equal(t, role, string(got))
	close(more)
	assert.Equal(t, finish, string(rig.Must(io.ReadAll(resp.Body))))
}

// A WebSocket goes to a server that has the model in its URL.
func TestUpgradesGoToTheirModel(t *testing.T) {
	w := newWorld(t, transport.Config{EnableEndpointHeader: true})
	for _, model := range []string{"m", "n", "o"} {
		w.add(t, model, startEngine(t, upgrades(echo)).URL, model)
	}
	for _, model := range []string{"m", "n", "o", "m", "n", "p"} {
		resp, err := w.t.RoundTrip(upgrade(t, model))
		if model == "p" {
			require.Equal(t, 404, transport.StatusOf(err))
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, 101, resp.StatusCode)
		assert.Equal(t, model, resp.Header.Get(transport.EndpointHeader))
		resp.Body.Close()
	}
	w.idle(t)
}

func TestStreamsOverHTTP2(t *testing.T) {
	gone := make(chan struct{}, 1)
	address, open := startH2C(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("X-Mood") == "" {
			answer(w, body, 0)
			return
		}
		hangs(role+delta(`"content":"a"`))(w, r, nil)
		gone <- struct{}{}
	}))
	w := newWorld(t, transport.Config{}, address)
	resp, body := w.ok(t, post(t, chatPath, chatStream))
	assert.Equal(t, 2, resp.ProtoMajor)
	assert.Contains(t, body, "upon")
	assert.Equal(t, 4, w.outcome(t).OutputTokens)

	resp = rig.Must(w.client.Do(post(t, chatPath, chatStream, "X-Mood", "slow")))
	assert.EqualValues(t, 1, w.router.Stats().OpenLeases)
	resp.Body.Close()
	<-gone

	// A request that must not be sent twice gets a new connection of the same kind.
	resp, _ = w.ok(t, post(t, "/v1/other", "{}"))
	assert.Equal(t, 2, resp.ProtoMajor)
	w.idle(t)
	require.Eventually(t, func() bool { return open.Load() == 1 }, 30*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { // a connection is idle a little after its last response has ended
		w.t.CloseIdleConnections()
		return open.Load() == 0
	}, 30*time.Second, time.Millisecond)
}
