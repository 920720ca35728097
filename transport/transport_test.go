package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/slo"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/recording"
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
		_, err := transport.New(c)
		var ce *endpick.ConfigError
		require.ErrorAs(t, err, &ce)
		require.ErrorAs(t, err, new(*endpick.ConfigError))
		if field == "Queue" {
			assert.Equal(t, "queue.Config.Timeout", ce.Field)
		} else {
			assert.Equal(t, "transport.Config."+field, ce.Field)
		}
	}
	negative["Fallbacks"] = transport.Config{Router: router, Fallbacks: -1}
	negative["Observe"] = transport.Config{Router: router, Observe: func(*transport.Observation) {}}
	for field, c := range negative { // what is for sending only is refused whatever it says
		_, err := transport.NewDispatcher(c)
		var ce *endpick.ConfigError
		require.ErrorAs(t, err, &ce)
		assert.Equal(t, "transport.Config."+field, ce.Field)
	}
	_, err := transport.New(transport.Config{Router: router})
	assert.NoError(t, err)
	require.NoError(t, router.Add(endpick.Endpoint{ID: "10.0.0.1:8000"}))
	_, err = transport.New(transport.Config{Router: router})
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

	ev := w.observer.events[0]
	_, hasTTFT := ev.TTFT()
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
	e := startEngine(t, nil)
	w := newWorld(t, transport.Config{}, e.URL)
	w.ok(t, post(t, chatPath, chatAtOnce, "x-slo-ttft-ms", "soon", "x-slo-tpot-ms", "50", transport.PriorityHeader, "high"))
	got := w.observer.requests[0]
	assert.Equal(t, endpick.SLO{TPOT: 50 * time.Millisecond}, got.SLO)
	assert.Zero(t, got.Priority)
	require.Len(t, w.warnings, 2)
	assert.ErrorAs(t, w.warnings[0], new(*slo.HeaderError))
	var he *endpick.RequestError
	assert.ErrorAs(t, w.warnings[1], &he)
}

// A request without a model may go anywhere; the policy chooses, as for any other.
func TestWithoutAModelAnyEndpointServes(t *testing.T) {
	a, b := startEngine(t, nil), startEngine(t, nil)
	w := newWorldOf(t, transport.Config{}, endpick.Config{Policy: endpick.Policy{Scorers: []endpick.Weighted{{Scorer: scorer.LeastLoaded(), Weight: 1}}}})
	w.add(t, "a", a.URL, "x")
	w.add(t, "b", b.URL, "y")
	busy := rig.Must(w.router.Route(endpick.Request{Model: "x"}))
	defer busy.Done(endpick.Outcome{})
	req := getting(t, "/version")
	resp, _ := w.ok(t, req)
	assert.Equal(t, "b", w.record(t).Endpoint)
	assert.Empty(t, resp.Header.Get(transport.EndpointHeader), "nobody asked for it")

	_, _, err := w.do(t, post(t, chatPath, strings.Replace(chatAtOnce, `"m"`, `"z"`, 1)))
	assert.ErrorAs(t, err, new(*endpick.NoEndpointError), "a model that nobody serves is not replaced")
	assert.Equal(t, 404, transport.StatusOf(err))
}

var errBroke = errors.New("broke")

// What a client is told of an error: a status, and when to try again, if that may help.
func TestErrorHandler(t *testing.T) {
	dial, read := &net.OpError{Op: "dial", Err: errBroke}, &net.OpError{Op: "read", Err: errBroke}
	limited := &queue.RateLimitError{Need: 2, Have: 1, RetryAfter: 20 * time.Millisecond}
	for _, tc := range []struct {
		err    error
		status int
		retry  string
	}{
		{&http.MaxBytesError{Limit: 1}, 413, ""},
		{&endpick.RejectedError{Reason: errBroke}, 429, ""},
		{&endpick.NoEndpointError{Model: "m", Endpoints: 1}, 404, ""},
		{&endpick.NoEndpointError{Model: "m", Endpoints: 2, Serving: 1, Draining: 1}, 503, "2"},
		{&endpick.NoEndpointError{Model: "m"}, 503, "2"}, // an empty fleet says nothing of the model
		{&endpick.NoEndpointError{Endpoints: 1}, 503, "2"},
		{&endpick.NoEndpointError{}, 503, "2"},
		{&transport.UpstreamError{Err: transport.ErrTimeout}, 504, ""},
		{context.DeadlineExceeded, 504, ""},
		{context.Canceled, 499, ""},
		{&endpick.RequestError{}, 400, ""},
		{fmt.Errorf("%w: %w", transport.ErrRead, &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}), 408, ""},
		{&transport.UpstreamError{Err: read}, 502, ""},
		{&transport.UpstreamError{Err: errBroke}, 502, ""},
		{&transport.UpstreamError{Err: dial}, 503, "2"}, // nobody is there
		{&queue.Error{Reason: queue.ErrFull}, 429, "1"},
		{&queue.Error{Reason: queue.ErrShed, Waited: 1500 * time.Millisecond}, 429, "2"},
		{&queue.Error{Reason: queue.ErrTimeout, Waited: time.Hour}, 503, "60"},
		{&queue.Error{Reason: queue.ErrTooLarge}, 413, ""},
		{&endpick.RejectedError{Reason: limited}, 429, "1"},
		{&endpick.RejectedError{Reason: &queue.RateLimitError{Need: 2, Have: 1}}, 429, ""},
		{&endpick.RejectedError{Reason: &slo.UnattainableError{}}, 429, ""},
	} {
		assert.Equal(t, tc.status, transport.StatusOf(tc.err), "%v", tc.err)
		rec := httptest.NewRecorder()
		rec.Header().Set("Content-Encoding", "gzip") // which the response was to have, but an error is plain text
		transport.ErrorHandler(rec, nil, tc.err)
		assert.Equal(t, tc.status, rec.Code)
		assert.Equal(t, tc.retry, rec.Header().Get("Retry-After"), "%v", tc.err)
		assert.Equal(t, "application/json", rec.Header().Get("Content-Type"))
		assert.NotContains(t, rec.Header(), "Content-Encoding")
		assert.Contains(t, rec.Body.String(), `"error":{"message":`)
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
				resp, err := w.client.Do(post(t, chatPath, chatStream, "X-Mood", "hang", transport.PriorityHeader, "x").WithContext(ctx))
				require.NoError(t, err)
				_, err = io.ReadFull(resp.Body, make([]byte, len(role)))
				require.NoError(t, err)
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
				p.Stack = nil
				assert.Equal(t, &endpick.PanicError{Stage: tc.stage, Value: "boom"}, p)
			}
		})
	}
}
