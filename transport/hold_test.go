package transport_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
)

// As long as the client has seen nothing that says something, another server is asked; afterwards the
// stream ends with an error.
func TestHeldUntilItSaysSomething(t *testing.T) {
	const stream, json = "text/event-stream", "application/json"
	responses := `{"model":"m","stream":true,"input":"hi"}`
	created := "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"instructions\":\"" + strings.Repeat("x", 100_000) + "\"}}\n\n"
	progress := "event: response.in_progress\ndata: {\"type\":\"response.in_progress\",\"response\":{\"id\":\"r\"}}\n\n"
	for _, tc := range []struct {
		name, path, request string
		handle              handler
		elsewhere           bool
	}{
		{"half of an object", chatPath, chatAtOnce, breaksOff(json, `{"choices":[`), true},
		{"an object that is an error", chatPath, chatAtOnce, says(json, `{"error":{"message":"broken"}}`), true},
		{"nothing", chatPath, chatAtOnce, says(json, ""), true},
		{"the way to itself", chatPath, chatAtOnce, func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
			http.Redirect(w, r, "https://"+r.Host+r.URL.Path, http.StatusPermanentRedirect)
			return true
		}, true},
		{"most of a long object", chatPath, chatAtOnce, breaksOff(json, `{"choices":[{"message":{"content":"`+strings.Repeat("x", 1<<19), `x`), true},
		{"half of a very long object", chatPath, chatAtOnce, breaksOff(json, `{"choices":[{"message":{"content":"`+strings.Repeat("x", 1<<20), `x`), false},
		{"half of an unknown thing", chatPath, chatAtOnce, breaksOff("text/plain", `{"choices":[`), false},
		{"what must not be sent twice", "/v1/responses", `{"model":"m","input":"hi","tools":[{"type":"mcp"}]}`, breaksOff(json, `{"output":[`), false},
		{"created", "/v1/responses", responses, breaksOff(stream, created, progress), true},
		{"created, and failed", "/v1/responses", responses, breaksOff(stream, created, progress, "event: error\ndata: {\"type\":\"error\",\"message\":\"broken\"}\n\n"), true},
		{"a role", chatPath, chatStream, breaksOff(stream, role, ": ping\n\n"), true},
		{"a role, and the end", chatPath, chatStream, sse(role), true},
		{"an error beside a choice", chatPath, chatStream, sse("data: {\"id\":\"c-1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"finish_reason\":\"error\"}],\"error\":{\"code\":502}}\n\n" + done), true},
		{"a start", "/v1/messages", strings.Replace(chatStream, "{", `{"max_tokens":5,`, 1), breaksOff(stream, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n", "event: ping\ndata: {\"type\":\"ping\"}\n\n"), true},
		{"a word", chatPath, chatStream, breaksOff(stream, role, delta(`"content":"word"`)), false},
		{"half an event after a word", chatPath, chatStream, breaksOff(stream, role+delta(`"content":"word"`)+"data: {\"cho"), false},
		{"created, for tools that the engine runs", "/v1/responses", strings.Replace(responses, "{", `{"tools":[{"type":"mcp"}],`, 1), breaksOff(stream, progress), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bad, good := startEngine(t, tc.handle), startEngine(t, nil)
			w := newWorld(t, transport.Config{}, bad.URL, good.URL)
			_, body, err := w.do(t, post(t, tc.path, tc.request))
			assert.EqualValues(t, 1, bad.requests.Load())
			all := w.observer.all()
			assert.Equal(t, endpick.Failed, all[0].Status)
			if tc.elsewhere {
				require.NoError(t, err)
				assert.Contains(t, body, "upon")
				assert.NotContains(t, body, "ping")
				require.Len(t, all, 2)
				assert.Equal(t, endpick.Completed, all[1].Status)
			} else {
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
				assert.Equal(t, strings.Contains(tc.request, `"stream":true`), strings.HasSuffix(body, "}\n\n") && strings.Contains(body, "the model server failed"), body[max(0, len(body)-300):])
				assert.Zero(t, good.requests.Load())
			}
			w.idle(t)
		})
	}
}

// A client that waits for signs of life gets them after a while, and what is held of all responses
// has a limit, beyond which they pass as they come.
func TestHoldingHasLimits(t *testing.T) {
	e := startEngine(t, func(w http.ResponseWriter, r *http.Request, body []byte) bool {
		w.Header().Set("Content-Type", "text/event-stream")
		piece := role
		if strings.Contains(string(body), "long") {
			w.Header().Set("Content-Type", "application/json")
			piece = `{"x":"` + strings.Repeat("x", 900<<10)
		}
		for {
			if _, err := io.WriteString(w, piece); err != nil {
				return true
			}
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
				return true
			case <-time.After(100 * time.Millisecond):
			}
			if piece = ": ping\n\n"; strings.Contains(string(body), "long") {
				<-r.Context().Done()
				return true
			}
		}
	})
	w := newWorld(t, transport.Config{}, e.URL)
	start := time.Now()
	resp, err := w.client.Do(post(t, chatPath, chatStream))
	require.NoError(t, err)
	assert.Greater(t, time.Since(start), 4*time.Second)
	resp.Body.Close()

	ask := func(n int) (answers chan *http.Response, leave func()) {
		ctx, cancel := context.WithCancel(t.Context())
		answers = make(chan *http.Response, n)
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				if resp, err := w.client.Do(post(t, chatPath, `{"model":"m","messages":[{"content":"long"}]}`).WithContext(ctx)); err == nil {
					answers <- resp
				}
			})
		}
		return answers, func() { cancel(); all.Wait(); w.idle(t) }
	}
	answers, leave := ask(66) // each takes a MiB
	(<-answers).Body.Close()
	leave()
	answers, leave = ask(60)
	require.Eventually(t, func() bool { return e.requests.Load() == 1+66+60 }, 10*time.Second, time.Millisecond)
	time.Sleep(200 * time.Millisecond)
	assert.Empty(t, answers, "nothing of those that have left counts any more")
	leave()
}

// A request that was at two servers when they died goes to no third, whether it streams or not.
func TestNoRequestFellsMoreThanTwoServers(t *testing.T) {
	for _, request := range []string{chatStream, chatAtOnce} {
		for name, handle := range map[string]handler{
			"before the header": breaksOff(""),
			"after a role":      breaksOff("text/event-stream", role),
			"in an object":      breaksOff("application/json", `{"choices":`),
		} {
			dead, other := startEngine(t, handle), startEngine(t, nil)
			w := newWorld(t, transport.Config{MaxAttempts: 5}, nobody(t), dead.URL, startEngine(t, status(503)).URL, dead.URL, other.URL)
			_, _, err := w.do(t, post(t, chatPath, request))
			assert.Equal(t, 502, transport.StatusOf(err), name)
			assert.EqualValues(t, 2, dead.requests.Load(), name)
			assert.Zero(t, other.requests.Load(), "who can't be reached, or says that it can't, is not dead")
			w.idle(t)
		}
	}
}
