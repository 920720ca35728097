package transport_test

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	aComment   = ": keep-alive\n\n"
	silence    = 10 * time.Millisecond
	pause      = 40 * silence // long beside what a busy machine loses
	responding = `{"model":"m","stream":true,"input":"Hello."}`
)

// inPieces answers with pieces, each after a pause; one of "" is the header, and "†" the server's death.
func inPieces(status int, kind string, pieces ...string) handler {
	return func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		for i, piece := range pieces {
			time.Sleep(pause)
			if piece == "†" {
				panic(http.ErrAbortHandler)
			}
			if i == 0 {
				w.Header().Set("Content-Type", kind)
				w.WriteHeader(status)
			}
			io.WriteString(w, piece)
			w.(http.Flusher).Flush()
		}
		return true
	}
}

var oneToken = delta(`"content":"Once"`)

// A stream that is silent has comments between its events, and nowhere else. After one, other
// endpoints may still be asked, and an error has the form of the API's streams.
func TestKeepAlive(t *testing.T) {
	whole := role + oneToken + finish + done
	events := "text/event-stream"
	failed := func(code, kind, message string) string {
		return `data: {"error":{"message":"` + message + `","type":"` + kind + `","param":null,"code":"` + code + `"}}` + "\n\n"
	}
	coded := func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		w.Header().Set("Content-Encoding", "br")
		return inPieces(200, "text/event-stream", "", "x")(w, r, nil)
	}
	tooLong := `{"error":{"message":"too long"}}`
	noResponse := func(code string) string {
		return `event: error` + "\n" + `data: {"type":"error","code":"` + code + `","message":"too long","param":null,"sequence_number":0}` + "\n\nevent: response.failed\n" +
			`data: {"type":"response.failed","response":{"object":"response","status":"failed","error":{"code":"` + code + `","message":"too long"},"output":[]},"sequence_number":1}` + "\n\n"
	}
	for name, tc := range map[string]struct {
		first, second handler
		path, request string
		comments      int // as many at least
		pieces        int // of the stream, with comments between
		want          string
	}{
		"a long prefill":         {inPieces(200, events, whole), nil, chatPath, chatStream, 2, 1, whole},
		"only announced":         {inPieces(200, events, "", role, oneToken+finish+done), nil, chatPath, chatStream, 4, 1, whole},
		"between events":         {inPieces(200, events, role+oneToken, finish+done), nil, chatPath, chatStream, 4, 2, whole},
		"in an event":            {inPieces(200, events, role+oneToken+finish[:9], finish[9:]+done), nil, chatPath, chatStream, 2, 2, whole},
		"lines of two bytes":     {inPieces(200, events, strings.ReplaceAll(role+oneToken, "\n", "\r\n"), finish+done), nil, chatPath, chatStream, 4, 2, strings.ReplaceAll(role+oneToken, "\n", "\r\n") + finish + done},
		"elsewhere":              {inPieces(200, events, "†"), inPieces(200, events, whole), chatPath, chatStream, 4, 1, whole},
		"dead":                   {inPieces(200, events, "†"), inPieces(200, events, "†"), chatPath, chatStream, 4, 1, failed("502", "api_error", "the model server failed before it answered")},
		"broken off":             {inPieces(200, events, role+oneToken, "†"), nil, chatPath, chatStream, 4, 2, role + oneToken + brokenOff},
		"refused":                {inPieces(400, "application/json", tooLong), nil, chatPath, chatStream, 2, 1, failed("400", "invalid_request_error", "too long")},
		"refused in a word":      {inPieces(404, "application/json", `{"error":"no"}`), nil, chatPath, chatStream, 2, 1, failed("404", "invalid_request_error", "no")},
		"refused by FastAPI":     {inPieces(403, "application/json", `{"detail":"no"}`), nil, chatPath, chatStream, 2, 1, failed("403", "invalid_request_error", "no")},
		"refused by vLLM":        {inPieces(403, "application/json", `{"object":"error","message":"no"}`), nil, chatPath, chatStream, 2, 1, failed("403", "invalid_request_error", "no")},
		"refused without a word": {inPieces(404, "text/html", "<html>"), nil, chatPath, chatStream, 2, 1, failed("404", "invalid_request_error", "Not Found")},
		"no stream":              {inPieces(200, "application/json", `{"choices":[]}`), nil, chatPath, chatStream, 2, 1, failed("502", "api_error", "the model server has not answered with a stream")},
		"in a coding":            {coded, nil, chatPath, chatStream, 2, 1, failed("502", "api_error", "the model server has not answered with a stream")},
		"messages": {inPieces(400, "application/json", tooLong), nil, "/v1/messages", strings.Replace(chatStream, "{", `{"max_tokens":5,`, 1), 2, 1,
			"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"too long\"}}\n\n"},
		"responses":             {inPieces(400, "application/json", tooLong), nil, "/v1/responses", responding, 2, 1, noResponse("invalid_prompt")},
		"responses, for a time": {inPieces(429, "application/json", tooLong), nil, "/v1/responses", responding, 2, 1, noResponse("rate_limit_exceeded")},
		"responses, failed":     {inPieces(500, "application/json", tooLong), nil, "/v1/responses", responding, 2, 1, noResponse("server_error")},
		"responses, for a reason": {inPieces(400, "application/json", tooLong[:len(tooLong)-2]+`,"code":"context_length_exceeded"}}`), nil, "/v1/responses", responding, 2, 1,
			noResponse("context_length_exceeded")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			urls := []string{startEngine(t, tc.first).URL}
			if tc.second != nil {
				urls = append(urls, startEngine(t, tc.second).URL)
			}
			receipt := &endpick.Receipt{}
			w := newWorld(t, transport.Config{KeepAlive: silence, MaxAttempts: 2, Describe: func(_ *http.Request, _ []byte, req *endpick.Request) { req.Receipt = receipt }}, urls...)
			post := post(t, tc.path, tc.request)
			resp := rig.Must(w.t.RoundTrip(post))
			assert.Equal(t, []any{200, int64(-1), "text/event-stream"}, []any{resp.StatusCode, resp.ContentLength, resp.Header.Get("Content-Type")})
			assert.Equal(t, "a", receipt.Verdicts[receipt.Chosen].Candidate.Endpoint.ID)
			text, err := io.ReadAll(resp.Body)
			assert.Equal(t, name == "broken off", err != nil, err)
			require.NoError(t, resp.Body.Close())
			parts := strings.Split(string(text), aComment)
			assert.Equal(t, tc.want, strings.Join(parts, ""))
			assert.Greater(t, len(parts), tc.comments)
			pieces := slices.DeleteFunc(parts, func(part string) bool { return part == "" })
			assert.Len(t, pieces, tc.pieces)
			assert.Same(t, post, resp.Request)
			assert.Equal(t, len(urls), w.record(t).Attempts)
			w.idle(t)
		})
	}
}

// Who reads the receipt when RoundTrip has returned meets no decision that writes it.
func TestKeepAliveWaitsForADecision(t *testing.T) {
	decisions := 0
	slow := scores(func(req *endpick.Request, cs []endpick.Candidate, dst []float64) {
		if decisions++; decisions == 2 {
			time.Sleep(pause)
		}
		inOrder(req, cs, dst)
	})
	receipt := &endpick.Receipt{}
	w := newWorldOf(t, transport.Config{KeepAlive: silence, Describe: func(_ *http.Request, _ []byte, req *endpick.Request) { req.Receipt = receipt }},
		endpick.Config{Policy: endpick.Policy{Scorers: []endpick.Weighted{{Scorer: slow, Weight: 1}}}},
		startEngine(t, status(500)).URL, startEngine(t, nil).URL, startEngine(t, nil).URL)
	resp := rig.Must(w.t.RoundTrip(post(t, chatPath, chatStream)))
	read := receipt.String()
	text := rig.Must(io.ReadAll(resp.Body))
	resp.Body.Close()
	assert.Contains(t, string(text), "upon")
	assert.Equal(t, read, receipt.String())
	w.idle(t)
}

// Where nothing is silent, where no comments can be, and where nobody may be asked, all is as it is
// without.
func TestNoKeepAlive(t *testing.T) {
	full := &transport.QueueConfig{Bounds: queue.Config{Timeout: pause}, Saturation: saturation(func([]endpick.Candidate) float64 { return 1 })}
	for name, tc := range map[string]struct {
		engine        handler
		path, request string
		config        transport.Config
		status        int
	}{
		"at once":  {nil, chatPath, chatStream, transport.Config{KeepAlive: time.Hour}, 200},
		"refused":  {status(404), chatPath, chatStream, transport.Config{KeepAlive: time.Hour}, 404},
		"no such":  {nil, chatPath, strings.Replace(chatStream, `"m"`, `"n"`, 1), transport.Config{KeepAlive: time.Hour}, 404},
		"queued":   {nil, chatPath, chatStream, transport.Config{KeepAlive: silence, Queue: full}, 503},
		"steady":   {inPieces(200, "text/event-stream", role, oneToken, oneToken, oneToken, oneToken, oneToken, oneToken, oneToken, oneToken, finish+done), chatPath, chatStream, transport.Config{KeepAlive: 4 * pause}, 200},
		"never":    {inPieces(200, "text/event-stream", role+finish+done), chatPath, chatStream, transport.Config{}, 200},
		"no reply": {inPieces(200, "application/json", `{"choices":[]}`), chatPath, chatAtOnce, transport.Config{KeepAlive: silence}, 200},
		"lines":    {inPieces(200, "application/x-ndjson", `{"done":true}`+"\n"), "/api/chat", `{"model":"m","messages":[]}`, transport.Config{KeepAlive: silence}, 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.config.EnableEndpointHeader = true
			w := newWorldOf(t, tc.config, endpick.Config{Endpoints: []endpick.Endpoint{{ID: "a", Address: startEngine(t, tc.engine).URL, Models: []string{"m"}}}})
			resp, text, err := w.do(t, post(t, tc.path, tc.request))
			if err != nil {
				assert.Equal(t, tc.status, transport.StatusOf(err))
				return
			}
			assert.Equal(t, tc.status, resp.StatusCode)
			assert.Equal(t, "a", resp.Header.Get(transport.EndpointHeader))
			assert.NotContains(t, text, aComment)
			w.idle(t)
		})
	}
}

// Proxies change the header of a response, while it is passed on.
func TestKeepAliveHasAHeaderOfItsOwn(t *testing.T) {
	theirs, _ := answered(200, "text/event-stream", role+finish+done)
	w := newWorld(t, transport.Config{KeepAlive: time.Hour, Base: rig.RoundTrip(func(*http.Request) (*http.Response, error) { return theirs, nil })}, "a")
	resp := rig.Must(w.t.RoundTrip(post(t, chatPath, chatStream)))
	resp.Header.Del("Content-Type")
	assert.Contains(t, theirs.Header, "Content-Type")
	require.NoError(t, resp.Body.Close())
}

// What a client that reads slowly has of an event is followed by the rest of it.
func TestKeepAliveBetweenEvents(t *testing.T) {
	long := delta(`"content":"` + strings.Repeat("Once", 50_000) + `"`)
	for _, event := range []string{long, strings.ReplaceAll(long, "\n", "\r\n")} {
		w := newWorld(t, transport.Config{KeepAlive: time.Millisecond}, startEngine(t, inPieces(200, "text/event-stream", role+event, finish+done)).URL)
		resp, err := w.client.Do(post(t, chatPath, chatStream))
		require.NoError(t, err)
		var text strings.Builder
		piece := make([]byte, 4<<10)
		for err == nil {
			var n int
			n, err = resp.Body.Read(piece)
			text.Write(piece[:n])
			time.Sleep(2 * time.Millisecond)
		}
		require.Equal(t, io.EOF, err)
		require.NoError(t, resp.Body.Close())
		pieces := slices.DeleteFunc(strings.Split(text.String(), aComment), func(part string) bool { return part == "" })
		require.Equal(t, role+event+finish+done, strings.Join(pieces, ""))
		for _, piece := range pieces {
			assert.True(t, strings.HasSuffix(piece, "\n\n") || strings.HasSuffix(piece, "\n\r\n"), "%d bytes of an event", len(piece))
		}
		assert.Greater(t, len(pieces), 1)
	}
}

// A client that leaves during the comments leaves nothing behind.
func TestLeavingKeepAlive(t *testing.T) {
	before := runtime.NumGoroutine()
	left := make(chan bool, 1)
	e := startEngine(t, func(_ http.ResponseWriter, r *http.Request, _ []byte) bool {
		<-r.Context().Done()
		left <- true
		return true
	})
	w := newWorld(t, transport.Config{KeepAlive: silence}, e.URL)
	resp := rig.Must(w.client.Do(post(t, chatPath, chatStream)))
	rig.Must(io.ReadFull(resp.Body, make([]byte, 2*len(aComment))))
	time.Sleep(pause) // one comment waits for a reader, and no more
	require.NoError(t, resp.Body.Close())
	<-left
	assert.Equal(t, "canceled", w.record(t).Status)
	w.idle(t)
	w.t.CloseIdleConnections()
	e.Close()
	settled(t, before)
}

// Panics of the goroutine that asks cost their own request alone.
func TestPanicsBesideKeepAlive(t *testing.T) {
	for _, after := range []time.Duration{0, pause} {
		w := newWorld(t, transport.Config{KeepAlive: silence, Base: rig.RoundTrip(func(*http.Request) (*http.Response, error) {
			time.Sleep(after)
			panic("boom")
		})}, "x:1")
		resp, text, err := w.do(t, post(t, chatPath, chatStream))
		if after == 0 {
			assert.Equal(t, 500, transport.StatusOf(err))
		} else {
			assert.Equal(t, 200, resp.StatusCode)
			assert.Contains(t, text, `"code":"500"`)
		}
		require.Len(t, w.warnings, 1)
		assert.ErrorContains(t, w.warnings[0], "boom")
		w.idle(t)
	}
}

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
	resp := rig.Must(w.client.Do(post(t, chatPath, chatStream)))
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
	require.Eventually(t, func() bool { return e.requests.Load() >= 1+66+60 }, time.Minute, time.Millisecond)
	time.Sleep(200 * time.Millisecond)
	assert.Empty(t, answers, "nothing of those that have left counts any more")
	leave()
}

// A request that was at two servers when they died goes to no third, unless one of them was never seen alive.
func TestNoRequestFellsMoreThanTwoServers(t *testing.T) {
	for _, request := range []string{chatStream, chatAtOnce} {
		for name, handle := range map[string]handler{
			"before the header": breaksOff(""),
			"never seen":        breaksOff(""),
			"after a role":      breaksOff("text/event-stream", role),
			"in an object":      breaksOff("application/json", `{"choices":`),
		} {
			dead, other := startEngine(t, func(w http.ResponseWriter, r *http.Request, body []byte) bool {
				return r.Method == "GET" || handle(w, r, body) // a check
			}), startEngine(t, nil)
			w := newWorld(t, transport.Config{MaxAttempts: 5}, nobody(), dead.URL, startEngine(t, status(503)).URL, dead.URL, other.URL)
			if name == "never seen" {
				w.ok(t, post(t, chatPath, request))
				continue
			}
			w.monitor.Check(t.Context())
			_, _, err := w.do(t, post(t, chatPath, request))
			assert.Equal(t, 502, transport.StatusOf(err), name)
			assert.EqualValues(t, 1+2, dead.requests.Load(), name)
			assert.EqualValues(t, 1, other.requests.Load(), "who can't be reached, or says that it can't, is not dead")
			w.idle(t)
		}
	}
}
