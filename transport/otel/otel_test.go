package otel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/otel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

const (
	secret = "cardamom"
	stream = `{"model":"m","stream":true,"max_tokens":7,"messages":[{"role":"user","content":"the secret is ` + secret + `"}]}`
)

// engine streams three tokens and records the headers that it received.
type engine struct {
	*httptest.Server
	headers []http.Header
}

func startEngine(t *testing.T, handle http.HandlerFunc) *engine {
	e := &engine{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		e.headers = append(e.headers, r.Header.Clone())
		if handle != nil {
			handle(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, word := range []string{"one", "two", "three"} {
			fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\n", word)
			w.(http.Flusher).Flush()
		}
		fmt.Fprint(w, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"+
			"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":64}}}\n\ndata: [DONE]\n\n")
	}))
	t.Cleanup(e.Close)
	return e
}

// stages are a policy with scores to report: endpoint b is the best before a, and c is left out.
type stages struct{}

func (stages) Name() string { return "order" }
func (stages) Match(_ *endpick.Request, cs []endpick.Candidate) {
	for i := range cs {
		cs[i].PrefixTokens = 48
	}
}
func (stages) Predict(_ *endpick.Request, cs []endpick.Candidate) {
	for i := range cs {
		cs[i].Prediction = endpick.Prediction{Has: endpick.TTFT | endpick.TPOT, TTFT: 250 * time.Millisecond, TPOT: 20 * time.Millisecond}
	}
}
func (stages) Filter(_ *endpick.Request, cs []endpick.Candidate) []endpick.Candidate {
	return endpick.Keep(cs, func(c *endpick.Candidate) bool { return c.Endpoint.ID != "c" })
}
func (stages) Score(_ *endpick.Request, cs []endpick.Candidate, dst []float64) {
	for i := range cs {
		dst[i] = 1 / float64(1+'b'-cs[i].Endpoint.ID[0])
	}
}

// newClient is a traced transport with engines a, b and so on.
func newClient(t *testing.T, tracer *otel.Tracer, addresses ...string) *http.Client {
	config := endpick.Config{Policy: endpick.Policy{
		Name: "test", Matcher: stages{}, Predictor: stages{}, Filters: []endpick.Filter{stages{}}, Scorers: []endpick.Weighted{{Scorer: stages{}, Weight: 1}},
	}}
	for i, a := range addresses {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: string(rune('a' + i)), Address: a})
	}
	router := rig.Must(endpick.New(config))
	_ = router.Report("b", endpick.Load{Waiting: 2, Running: 1, KVUsage: 0.5}) // an error where there is none
	routed := rig.Must(transport.New(transport.Config{
		Router: router, Observe: tracer.Observe,
		Describe: func(in *http.Request, body []byte, req *endpick.Request) {
			req.Tenant = "ann"
			tracer.Describe(in, body, req)
		},
	}))
	t.Cleanup(routed.CloseIdleConnections)
	return &http.Client{Transport: tracer.RoundTripper(routed)}
}

func post(ctx context.Context, c *http.Client, path, body string, headers ...string) (int, error) {
	req := rig.Must(http.NewRequestWithContext(ctx, http.MethodPost, "http://gateway"+path, strings.NewReader(body)))
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

func traceparent(s tracetest.SpanStub) string {
	return "00-" + s.SpanContext.TraceID().String() + "-" + s.SpanContext.SpanID().String() + "-01"
}

func TestSpan(t *testing.T) {
	r, provider := newRecorder()
	e := startEngine(t, nil)
	spare := startEngine(t, nil)
	c := newClient(t, otel.New(otel.Config{Provider: provider}), spare.URL, strings.Replace(e.URL, "http://", "http://user:password@", 1), spare.URL)
	_ = rig.Must(post(t.Context(), c, "/v1/chat/completions", stream, "X-Slo-Ttft-Ms", "60000", "X-Slo-Tpot-Ms", "30000"))
	s := r.wait(t, 1)[0]
	assert.Equal(t, "github.com/endpick/endpick/transport/otel", s.InstrumentationScope.Name)
	assert.Equal(t, "chat m", s.Name)
	assert.Equal(t, trace.SpanKindClient, s.SpanKind)
	assert.Empty(t, s.Links)
	assert.Empty(t, s.Events)
	got := attributes(s.Attributes)
	port := rig.Must(strconv.ParseInt(e.URL[strings.LastIndexByte(e.URL, ':')+1:], 10, 64))
	want := map[string]any{
		"gen_ai.operation.name": "chat", "gen_ai.provider.name": "endpick", "gen_ai.request.model": "m", "gen_ai.request.stream": true,
		"gen_ai.request.max_tokens": int64(7), "gen_ai.usage.input_tokens": int64(100), "gen_ai.usage.output_tokens": int64(3),
		"gen_ai.usage.cache_read.input_tokens": int64(64),
		"server.address":                       "127.0.0.1", "server.port": port, "http.response.status_code": int64(200), "url.path": "/v1/chat/completions",
		"endpick.endpoint": "b", "endpick.status": "completed", "endpick.attempts": int64(1), "endpick.tenant": "ann", "endpick.policy": "test",
		"endpick.decision.number": int64(1), "endpick.decision.candidates": int64(3), "endpick.decision.removed": int64(1),
		"endpick.decision.score": 1.0, "endpick.decision.regret": 0.0, "endpick.decision.scorers": []string{"order"}, "endpick.decision.scores": []float64{1},
		"endpick.decision.runner_up": "a", "endpick.decision.runner_up.score": 0.5,
		"endpick.prefix.matched_tokens": int64(48), "endpick.predicted.ttft": 0.25, "endpick.predicted.tpot": 0.02,
		"endpick.load.waiting": 2.0, "endpick.load.running": 1.0, "endpick.load.kv_usage": 0.5, "endpick.load.prefill_tokens": int64(0),
		"endpick.slo.ttft": 60.0, "endpick.slo.ttft.met": true, "endpick.slo.tpot": 30.0, "endpick.slo.tpot.met": true,
	}
	for _, key := range []string{
		"endpick.held", "endpick.decision.duration", "endpick.measured.ttft", "endpick.measured.tpot", "endpick.measured.e2e",
		"gen_ai.response.time_to_first_chunk",
	} {
		assert.GreaterOrEqual(t, got[key], 0.0, key)
		want[key] = got[key]
	}
	assert.Positive(t, got["endpick.decision.duration"])
	assert.NotEqual(t, 0.25, got["endpick.measured.ttft"], "as predicted")
	assert.InDelta(t, got["endpick.measured.ttft"], got["gen_ai.response.time_to_first_chunk"], 1)
	assert.Equal(t, want, got)
	text := fmt.Sprint(s)
	assert.NotContains(t, text, secret)
	assert.NotContains(t, text, "password")
	assert.Equal(t, traceparent(s), e.headers[0].Get("Traceparent"), "the engine's spans are below it")
}

func TestAttempts(t *testing.T) {
	r, provider := newRecorder()
	unhealthy := startEngine(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	well := startEngine(t, nil)
	c := newClient(t, otel.New(otel.Config{Provider: provider}), well.URL, unhealthy.URL)
	_ = rig.Must(post(t.Context(), c, "/v1/completions", `{"model":"m","stream":true,"prompt":"x"}`))
	s := r.wait(t, 1)[0]
	assert.Equal(t, "text_completion m", s.Name)
	assert.Equal(t, codes.Unset, s.Status.Code, "it was served")
	assert.Equal(t, "a", attributes(s.Attributes)["endpick.endpoint"])
	assert.EqualValues(t, 1, attributes(s.Attributes)["endpick.decision.candidates"], "of the last decision")
	require.Len(t, s.Events, 2)
	assert.Equal(t, map[string]any{
		"endpick.endpoint": "b", "endpick.result": "error", "http.response.status_code": int64(500), "endpick.error": "answered 500 Internal Server Error",
	}, attributes(s.Events[0].Attributes))
	assert.Equal(t, map[string]any{"endpick.endpoint": "a", "endpick.result": "served", "http.response.status_code": int64(200)}, attributes(s.Events[1].Attributes))
	assert.False(t, s.Events[0].Time.Before(s.StartTime))
	assert.True(t, s.Events[0].Time.Before(s.Events[1].Time))
	assert.Equal(t, traceparent(s), unhealthy.headers[0].Get("Traceparent"))
}

func TestFailures(t *testing.T) {
	dead := httptest.NewServer(nil)
	dead.Close()
	answering := func(status int) string {
		return startEngine(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }).URL
	}
	cut := startEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"half\"}}]}\n\n")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}).URL
	const failed, unset = codes.Error, codes.Unset
	for name, tc := range map[string]struct {
		address, path, body string
		code                codes.Code
		kind                string
		status              int64
	}{
		"nobody there":  {dead.URL, "/v1/chat/completions", stream, failed, "503", 503},
		"5xx":           {answering(503), "/v1/chat/completions", stream, failed, "503", 503},
		"the client's":  {answering(400), "/v1/chat/completions", stream, unset, "400", 400},
		"cut":           {cut, "/v1/chat/completions", stream, failed, "broken", 200},
		"invalid":       {cut, "/v1/messages", "x", unset, "400", 400},
		"administrator": {cut, "/sleep", "", unset, "404", 404},
	} {
		t.Run(name, func(t *testing.T) {
			r, provider := newRecorder()
			c := newClient(t, otel.New(otel.Config{Provider: provider}), tc.address)
			_, _ = post(t.Context(), c, tc.path, tc.body)
			s := r.wait(t, 1)[0]
			got := attributes(s.Attributes)
			assert.Equal(t, tc.code, s.Status.Code)
			assert.Equal(t, strings.TrimSpace(s.Name), s.Name)
			assert.Equal(t, tc.kind, got["error.type"])
			assert.Equal(t, tc.status, got["http.response.status_code"])
			assert.EqualValues(t, got["endpick.attempts"], len(s.Events))
		})
	}
	t.Run("no endpoint", func(t *testing.T) {
		r, provider := newRecorder()
		_, err := post(t.Context(), newClient(t, otel.New(otel.Config{Provider: provider})), "/v1/embeddings", `{"model":"`+strings.Repeat("é", 128)+`","input":"x"}`)
		require.ErrorAs(t, err, new(*endpick.NoEndpointError))
		s := r.wait(t, 1)[0]
		assert.Equal(t, "embeddings "+strings.Repeat("é", 128), s.Name)
		assert.Equal(t, failed, s.Status.Code)
		assert.NotContains(t, attributes(s.Attributes), "endpick.endpoint")
		assert.EqualValues(t, 0, attributes(s.Attributes)["endpick.decision.candidates"])
	})
	t.Run("client left", func(t *testing.T) {
		r, provider := newRecorder()
		arrived := make(chan struct{})
		e := startEngine(t, func(_ http.ResponseWriter, r *http.Request) {
			close(arrived)
			<-r.Context().Done()
		})
		ctx, leave := context.WithCancel(t.Context())
		go func() { <-arrived; leave() }()
		_, err := post(ctx, newClient(t, otel.New(otel.Config{Provider: provider}), e.URL), "/v1/chat/completions", stream)
		require.ErrorIs(t, err, context.Canceled)
		s := r.wait(t, 1)[0]
		assert.Equal(t, "canceled", attributes(s.Attributes)["error.type"])
		assert.Equal(t, unset, s.Status.Code, "that is no failure of ours")
	})
}

// Only trusted clients may set the parent of a span.
func TestParents(t *testing.T) {
	const theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, trusted := range []bool{false, true} {
		t.Run(fmt.Sprint(trusted), func(t *testing.T) {
			r, provider := newRecorder()
			e := startEngine(t, nil)
			c := newClient(t, otel.New(otel.Config{Provider: provider, TrustParent: trusted}), e.URL)
			_ = rig.Must(post(t.Context(), c, "/v1/chat/completions", stream, "Traceparent", theirs, "Tracestate", "vendor=x"))
			s := r.wait(t, 1)[0]
			if trusted {
				assert.Equal(t, "b7ad6b7169203331", s.Parent.SpanID().String())
				assert.Equal(t, "0af7651916cd43dd8448eb211c80319c", s.SpanContext.TraceID().String())
				assert.Equal(t, "vendor=x", e.headers[0].Get("Tracestate"))
			} else {
				assert.False(t, s.Parent.IsValid())
				require.Len(t, s.Links, 1)
				assert.Equal(t, "b7ad6b7169203331", s.Links[0].SpanContext.SpanID().String())
				assert.Empty(t, e.headers[0].Values("Tracestate"), "the client's does not go with another trace")
			}
			assert.Equal(t, traceparent(s), e.headers[0].Get("Traceparent"))
		})
	}
	t.Run("a span of the host", func(t *testing.T) {
		r, provider := newRecorder()
		c := newClient(t, otel.New(otel.Config{Provider: provider, TrustParent: true}), startEngine(t, nil).URL)
		ctx, outer := provider.Tracer("host").Start(t.Context(), "outer")
		_ = rig.Must(post(ctx, c, "/v1/chat/completions", stream, "Traceparent", theirs))
		assert.Equal(t, outer.SpanContext().SpanID(), r.wait(t, 1)[0].Parent.SpanID())
	})
}

// A span that is not sampled requires no receipt, and the engine sees that it is not sampled.
func TestNotSampled(t *testing.T) {
	_, provider := newRecorder(sdk.WithSampler(sdk.NeverSample()))
	e := startEngine(t, nil)
	tracer := otel.New(otel.Config{Provider: provider})
	asked := false
	router := rig.Must(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{Address: e.URL}}}))
	routed := rig.Must(transport.New(transport.Config{
		Router: router, Observe: tracer.Observe,
		Describe: func(in *http.Request, body []byte, req *endpick.Request) {
			tracer.Describe(in, body, req)
			asked = req.Receipt != nil
			assert.True(t, trace.SpanContextFromContext(in.Context()).IsValid())
		},
	}))
	t.Cleanup(routed.CloseIdleConnections)
	_ = rig.Must(post(t.Context(), &http.Client{Transport: tracer.RoundTripper(routed)}, "/v1/chat/completions", stream))
	assert.False(t, asked)
	assert.True(t, strings.HasSuffix(e.headers[0].Get("Traceparent"), "-00"))
}

// However RoundTrip returns, the span has ended: lists of models are not observed, and
// panics are not reported.
func TestEverySpanEnds(t *testing.T) {
	r, provider := newRecorder()
	e := startEngine(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"data":[{"id":"m"}]}`) })
	tracer := otel.New(otel.Config{Provider: provider, ProviderName: "vllm"})
	require.NoError(t, rig.Must(newClient(t, tracer, e.URL).Get("http://gateway/v1/models")).Body.Close())
	s := r.wait(t, 1)[0]
	assert.Equal(t, "request", s.Name)
	assert.Equal(t, "vllm", attributes(s.Attributes)["gen_ai.provider.name"])

	boom := tracer.RoundTripper(rig.RoundTrip(func(in *http.Request) (*http.Response, error) {
		tracer.Describe(in, nil, new(endpick.Request))
		panic("boom")
	}))
	req := rig.Must(http.NewRequest(http.MethodGet, "http://gateway/", nil))
	assert.PanicsWithValue(t, "boom", func() { _, _ = boom.RoundTrip(req) })
	assert.Equal(t, codes.Error, r.wait(t, 2)[1].Status.Code)
}

// Each part works without the others: no span, another tracer's span, other headers.
func TestParts(t *testing.T) {
	tracer := otel.New(otel.Config{})
	req := rig.Must(http.NewRequest(http.MethodPost, "http://gateway/v1/generate", nil))
	var routed endpick.Request
	tracer.Describe(req, nil, &routed)
	tracer.Observe(&transport.Observation{In: req})
	assert.Nil(t, routed.Receipt)

	r, provider := newRecorder()
	_, others := newRecorder()
	inner := otel.New(otel.Config{Provider: others, Propagator: propagation.Baggage{}})
	outer := otel.New(otel.Config{Provider: provider})
	own := new(endpick.Receipt)
	_, err := outer.RoundTripper(inner.RoundTripper(rig.RoundTrip(func(in *http.Request) (*http.Response, error) {
		var routed endpick.Request
		outer.Describe(in, nil, &routed)
		assert.Nil(t, routed.Receipt, "it is hidden by the inner one")
		routed.Receipt = own
		inner.Describe(in, nil, &routed)
		assert.Same(t, own, routed.Receipt, "the host's")
		return nil, io.ErrUnexpectedEOF
	}))).RoundTrip(req)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	assert.Equal(t, []string{"text_completion"}, []string{r.wait(t, 1)[0].Name})
}

// failing is the span of a request to a path, which fails.
func failing(t *testing.T, path string) tracetest.SpanStub {
	r, provider := newRecorder()
	next := rig.RoundTrip(func(*http.Request) (*http.Response, error) { return nil, http.ErrHandlerTimeout })
	req := rig.Must(http.NewRequest(http.MethodPost, "http://gateway", nil))
	req.URL.Path = path
	require.ErrorIs(t, rig.Err(otel.New(otel.Config{Provider: provider}).RoundTripper(next).RoundTrip(req)), http.ErrHandlerTimeout)
	return r.wait(t, 1)[0]
}

// The operation is taken from the end of the path, with a slash or without.
func TestOperations(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/chat/completions/": "chat", "/api/v1/messages": "chat", "/v1/responses": "chat", "/v1/completions": "text_completion",
		"/generate/": "text_completion", "/v1/embeddings": "embeddings", "/v1/rerank": "request", "/": "request", "/completions/x": "request",
	} {
		s := failing(t, path)
		assert.Equal(t, want, s.Name, path)
		assert.Equal(t, want, attributes(s.Attributes)["gen_ai.operation.name"])
	}
}

// Strings from clients are truncated and made valid UTF-8.
func TestLongWordsAreCut(t *testing.T) {
	long, short := strings.Repeat("é", 5000), strings.Repeat("é", 128)
	assert.Equal(t, "/"+short[2:]+"\uFFFD", attributes(failing(t, "/"+long).Attributes)["url.path"])
	assert.Equal(t, "/a\uFFFDb", attributes(failing(t, "/a\xffb").Attributes)["url.path"])
	r, provider := newRecorder()
	tracer := otel.New(otel.Config{Provider: provider})
	_, _ = post(t.Context(), &http.Client{Transport: tracer.RoundTripper(rig.RoundTrip(func(in *http.Request) (*http.Response, error) {
		o := &transport.Observation{In: in, Tenant: long, Err: errors.New(long), Held: 3 * time.Second}
		o.Model, o.Status = long, "failed"
		o.Attempts = []transport.ObservedAttempt{{Candidate: endpick.Candidate{Endpoint: &endpick.Endpoint{}}, Err: o.Err}}
		tracer.Observe(o)
		return nil, io.EOF
	}))}, "/v1/messages", "")
	s := r.wait(t, 1)[0]
	got, attempt := attributes(s.Attributes), attributes(s.Events[0].Attributes)
	assert.Equal(t, []any{"chat " + short, short, short, short, short, 3.0},
		[]any{s.Name, got["gen_ai.request.model"], got["endpick.tenant"], s.Status.Description, attempt["endpick.error"], got["endpick.held"]})
	assert.NotContains(t, attempt, "http.response.status_code", "nothing has come")
	assert.NotContains(t, got, "gen_ai.request.max_tokens")
}

type closes struct {
	http.RoundTripper
	closed int
}

func (c *closes) CloseIdleConnections() { c.closed++ }

// The tracer is transparent: the response refers to the client's own request, and idle
// connections are closed in the base transport.
func TestTheTracerIsNotSeen(t *testing.T) {
	_, provider := newRecorder()
	tracer := otel.New(otel.Config{Provider: provider})
	var got *http.Request
	next := &closes{RoundTripper: rig.RoundTrip(func(in *http.Request) (*http.Response, error) {
		got = in
		return &http.Response{StatusCode: 200, Body: http.NoBody, Request: in}, nil
	})}
	rt := tracer.RoundTripper(next)
	req := rig.Must(http.NewRequestWithContext(context.Background(), http.MethodPost, "http://gateway/v1/completions", nil))
	assert.Same(t, req, rig.Must(rt.RoundTrip(req)).Request)
	assert.Empty(t, req.Header.Get("Traceparent"), "the client's header is the client's")
	assert.NotEmpty(t, got.Header.Get("Traceparent"))
	(&http.Client{Transport: rt}).CloseIdleConnections()
	assert.Equal(t, 1, next.closed)
}

// newRecorder returns a recorder of spans that have ended, and its provider.
func newRecorder(options ...sdk.TracerProviderOption) (*recorder, *sdk.TracerProvider) {
	r := &recorder{tracetest.NewSpanRecorder()}
	return r, sdk.NewTracerProvider(append(options, sdk.WithSpanProcessor(r))...)
}

type recorder struct{ *tracetest.SpanRecorder }

// wait returns the spans once n of them have ended.
func (r *recorder) wait(t *testing.T, n int) tracetest.SpanStubs {
	require.Eventually(t, func() bool { return len(r.Ended()) >= n }, 30*time.Second, time.Millisecond)
	require.Len(t, r.Ended(), n)
	return tracetest.SpanStubsFromReadOnlySpans(r.Ended())
}

// attributes returns those of a span or an event as Go types.
func attributes(all []attribute.KeyValue) map[string]any {
	got := map[string]any{}
	for _, kv := range all {
		got[string(kv.Key)] = kv.Value.AsInterface()
	}
	return got
}
