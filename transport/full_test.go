package transport_test

import (
	"cmp"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
)

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
				tr := rig.Must(transport.New(transport.Config{Router: router, Health: monitor, Base: tripper(func(r *http.Request) (*http.Response, error) {
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
					resp, err := tr.RoundTrip(post(t, path, chatStream))
					require.NoError(t, err)
					_, err = io.Copy(io.Discard, resp.Body)
					require.NoError(t, err)
					resp.Body.Close()
					return resp
				}
				if tc.waits {
					require.NoError(t, router.Report("a", endpick.Load{Waiting: 2, Running: 2}))
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

// Where all are full, a client is told so in the way that makes it ask again, also if engines say it in
// an event.
func TestAllAreFull(t *testing.T) {
	full := sse("data: {\"error\":{\"message\":\"busy\",\"code\":503}}\n\n" + done)
	w := newWorld(t, transport.Config{}, startEngine(t, full).URL, startEngine(t, full).URL)
	resp, body, err := w.do(t, post(t, chatPath, chatStream))
	require.NoError(t, err)
	assert.Equal(t, []any{503, "application/json", "1"}, []any{resp.StatusCode, resp.Header.Get("Content-Type"), resp.Header.Get("Retry-After")})
	assert.Contains(t, body, `"message":"all model servers are full"`)
	w.idle(t)
}
