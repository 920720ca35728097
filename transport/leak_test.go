package transport_test

import (
	"bytes"
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
	"testing/iotest"
	"time"
	"weak"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
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
		return hangs()(w, r, body)
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
	before := rig.Heap()
	var open []*http.Response
	for range streams {
		body := `{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("x", size) + `"}]}`
		req := post(t, chatPath, body)
		resp := rig.Must(w.t.RoundTrip(req))
		assert.Same(t, req, resp.Request)
		req.Body, req.GetBody = nil, nil // the caller's references
		open = append(open, resp)
	}
	// The hashed blocks stay for the record, here and in the observer: a third, with some
	// margin. One of the four prompts would be a quarter more. What net/http and pools
	// release a little later is not counted.
	assert.Eventually(t, func() bool { return rig.Heap()-before < streams*size/2 }, 30*time.Second, 10*time.Millisecond)
	close(more)
	for _, resp := range open {
		rig.Must(io.Copy(io.Discard, resp.Body))
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
	read := func(t *testing.T, b io.ReadCloser) { rig.Must(io.Copy(io.Discard, b)) }
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
			w := newWorld(t, transport.Config{Base: rig.RoundTrip(func(r *http.Request) (*http.Response, error) {
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

// headerOf parses lines of name, colon and value, keeping the names and values
// that net/http accepts.
func headerOf(lines string) http.Header {
	h := http.Header{}
	for line := range strings.SplitSeq(lines, "\n") {
		name, value, _ := strings.Cut(line, ":")
		if len(h) < 32 && name != "" && strings.IndexFunc(name, func(r rune) bool {
			return !strings.ContainsRune("-_", r) && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
		}) < 0 &&
			strings.IndexFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) < 0 {
			h.Add(name, strings.Trim(value, " \t"))
		}
	}
	return h
}

// Whatever headers and bodies a client and a server send, nothing panics, there is a
// response or an error, and nothing stays open. Half of the responses break off.
func FuzzRoundTrip(f *testing.F) {
	const stream = "Content-Type: text/event-stream\n"
	for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/v1/embeddings", "/v1/rerank", "/tokenize", "/v1/messages/count_tokens", "/v1/audio/transcriptions", "/infill", "/generate", "/completion", "/v1/models", "/sleep", "/x?y#z", ""} {
		f.Add(path, "Content-Type: application/json\nX-Slo-Ttft-Ms: 100\nX-Endpick-Priority: 1", `{"model":"m","stream":true,"messages":[{"role":"user","content":"Hi"}],"prompt":"a","input":"a","query":"a","documents":["b"],"input_prefix":"a"}`,
			uint16(200), stream, `data: {"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":3}}`+"\n\ndata: [DONE]\n\n", false)
	}
	f.Add("/v1/chat/completions", "Content-Encoding: gzip\nX-Endpick-Session: s", "\x1f\x8b\x08", uint16(200), "Content-Encoding: br\nContent-Length: -1", "{", true)
	f.Add("/v1/audio/transcriptions", "Content-Type: multipart/form-data; boundary=x", "--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--x--", uint16(503), "Retry-After: 1e9", "", false)
	f.Add("/v1/chat/completions", "Accept-Encoding: gzip\nConnection: upgrade\nUpgrade: x\nTraceparent: 00-0-0-00", "{}", uint16(429), "Retry-After: -5\nTransfer-Encoding: x", "{}", true)
	config := all.LMetric()
	config.Endpoints = []endpick.Endpoint{{ID: "a", Address: "10.0.0.1:8000", Models: []string{"m"}}, {ID: "b", Address: "10.0.0.2:8000"}}
	router := rig.Must(endpick.New(config))
	var panicked rig.List[error]
	type answer struct {
		status int
		header http.Header
		body   string
		breaks bool
	}
	var next atomic.Pointer[answer]
	rt := rig.Must(transport.New(transport.Config{
		Router: router, MaxBodyBytes: 1 << 16,
		Base: rig.RoundTrip(func(in *http.Request) (*http.Response, error) {
			if in.Body != nil {
				_, _ = io.Copy(io.Discard, in.Body)
				in.Body.Close()
			}
			a := next.Load()
			body := io.Reader(strings.NewReader(a.body))
			if a.breaks {
				body = io.MultiReader(body, iotest.ErrReader(io.ErrUnexpectedEOF))
			}
			return &http.Response{
				StatusCode: a.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: a.header.Clone(), Body: io.NopCloser(body), ContentLength: -1, Request: in,
			}, nil
		}),
		Warn: func(_ *http.Request, err error) {
			if p := (*endpick.PanicError)(nil); errors.As(err, &p) {
				panicked.Add(err)
			}
		},
	}))
	f.Fuzz(func(t *testing.T, path, sent, body string, status uint16, received, answered string, breaks bool) {
		if len(body)+len(answered) > 1<<17 || len(path) > 1<<12 {
			return
		}
		next.Store(&answer{200 + (int(status)+200)%400, headerOf(received), answered, breaks})
		in := rig.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, "http://gateway/", strings.NewReader(body)))
		to, err := in.URL.Parse("/" + strings.TrimLeft(path, "/"))
		if in.URL = to; err != nil || to.Host != "gateway" {
			return
		}
		in.Header = headerOf(sent)
		out, err := rt.RoundTrip(in)
		if err == nil {
			_, _ = io.Copy(io.Discard, out.Body)
			require.NoError(t, out.Body.Close())
		} else {
			require.Nil(t, out)
		}
		require.Empty(t, panicked.Take())
		// An abandoned exchange is closed by a goroutine of its own.
		rig.Idle(t, router)
	})
}

// Everything that client and server send reaches the other unchanged, except for the
// accepted codings of responses, empty streams, and streams that are said to be something else. Usage is requested by the client here,
// so it is not added.
func TestNothingElseIsChanged(t *testing.T) {
	var asked *http.Request
	var body, answer string
	var status int
	var header http.Header
	config := all.LMetric()
	config.Endpoints = []endpick.Endpoint{{ID: "a", Address: "10.0.0.1:8000"}}
	router := rig.Must(endpick.New(config))
	rt := rig.Must(transport.New(transport.Config{Router: router, Pass: []string{"/"}, Base: rig.RoundTrip(func(in *http.Request) (*http.Response, error) {
		b, err := io.ReadAll(in.Body)
		asked, body = in, string(b)
		return &http.Response{
			StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: header.Clone(), Request: in,
			ContentLength: int64(len(answer)), Body: io.NopCloser(iotest.HalfReader(strings.NewReader(answer))),
		}, err
	})}))
	text := rapid.SampledFrom([]string{`"hi"`, `""`, `null`, `[{"type":"text","text":"hi"}]`, `[{"type":"image_url","image_url":{"url":"data:x"}}]`, `{"a":1}`, `5`, `[1,2]`, `["a","b"]`})
	event := rapid.SampledFrom([]string{
		`{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}`, `{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}`, `[DONE]`, `x`, ``, `{"error":{"message":"x"}}`,
		`{"type":"message_start","message":{"usage":{}}}`, `{"type":"message_stop"}`, `{"type":"response.completed","response":{"id":"r"}}`, `{"text":"a","meta_info":{}}`, `{"content":"a","stop":true}`,
	})
	exchange := func(t *rapid.T) {
		said := `{"model":` + rapid.SampledFrom([]string{`"m"`, `""`, `null`}).Draw(t, "model") +
			rapid.SampledFrom([]string{"", `,"stream":true,"stream_options":{"include_usage":true}`, `,"stream":false`, `,"stream":"yes"`}).Draw(t, "stream") +
			rapid.SampledFrom([]string{"", `,"n":2`, `,"max_tokens":"x"`, `,"user":5`, `,"x":"\ud800"`, "\n,\t\"q\" : 1e400 ", `,"store":false`}).Draw(t, "more")
		for _, member := range []string{"messages", "prompt", "input", "query", "text"} {
			said += `,"` + member + `":` + text.Draw(t, member)
		}
		said += "}"
		switch rapid.IntRange(0, 9).Draw(t, "form") {
		case 0:
			said = said[:rapid.IntRange(0, 2).Draw(t, "cut")]
		case 1:
			said = "\xef\xbb\xbf \r\n" + said + said
		case 2:
			said = rapid.String().Draw(t, "anything")
		}
		answer = ""
		for _, e := range rapid.SliceOfN(event, 0, 4).Draw(t, "events") {
			answer += rapid.SampledFrom([]string{"data: ", "data:", "event: e\r\ndata: ", ": c\n\ndata: ", ""}).Draw(t, "before") + e + rapid.SampledFrom([]string{"\n\n", "\r\n\r\n", "\r\r", "\n", ""}).Draw(t, "after")
		}
		status = rapid.SampledFrom([]int{200, 200, 200, 201, 302, 400, 401, 404, 429, 500, 503}).Draw(t, "status")
		header = http.Header{"Content-Type": {rapid.SampledFrom([]string{"application/json", "text/event-stream", "text/event-stream; charset=utf-8", "text/plain", ""}).Draw(t, "type")}, "X-Twice": {"1", "2"}, "Etag": {`W/"x"`}}
		path := rapid.SampledFrom([]string{
			"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/v1/embeddings", "/v1/rerank", "/generate", "/completion", "/infill",
			"/tokenize", "/v1/audio/transcriptions", "/v1/files", "//v1//chat/completions", "/v1/responses/x/cancel", "/", "/a%2Fb", "/a%20b?d=%20&&e;f",
		}).Draw(t, "path")
		in := rig.Must(http.NewRequest(rapid.SampledFrom([]string{"POST", "POST", "POST", "PUT", "DELETE"}).Draw(t, "method"), "http://gateway"+path, strings.NewReader(said)))
		in.Header = http.Header{"Authorization": {"Bearer x"}, "X-Twice": {"1", "2"}, "Content-Type": {rapid.SampledFrom([]string{"application/json", "text/plain", "multipart/form-data; boundary=b"}).Draw(t, "sent as")}}
		sent := in.Header.Clone()
		asked = nil
		out, err := rt.RoundTrip(in)
		if asked == nil { // such as a non-string model
			require.Contains(t, []int{400, 404}, transport.StatusOf(err))
			return
		}
		require.Equal(t, [3]string{in.Method, in.URL.RequestURI(), said}, [3]string{asked.Method, asked.URL.RequestURI(), body})
		got := asked.Header.Clone()
		got.Del("Accept-Encoding")
		got.Del("X-Idempotency-Key") // without a value it is not sent
		require.Equal(t, sent, got)
		require.Equal(t, sent, in.Header)
		events := strings.Contains(header.Get("Content-Type"), "event-stream") || strings.HasPrefix(answer, "data:") || strings.HasPrefix(answer, "event:") || strings.HasPrefix(answer, ":")
		if errors.Is(err, io.ErrUnexpectedEOF) && (answer == "" && status == 200 || events) {
			return // an empty stream, or one that says nothing
		}
		require.NoError(t, err)
		var passed bytes.Buffer
		_, err = passed.ReadFrom(out.Body)
		if !errors.Is(err, io.ErrUnexpectedEOF) || !events { // an unfinished body
			require.NoError(t, err)
		}
		require.NoError(t, out.Body.Close())
		if err == nil {
			require.Equal(t, answer, passed.String())
		} else { // instead of an event that has no end
			end := bytes.LastIndex(passed.Bytes()[:passed.Len()-2], []byte("data: {"))
			if at := bytes.LastIndex(passed.Bytes(), []byte("event: error\n")); at >= 0 {
				end = at
			}
			require.Contains(t, passed.String()[end:], "the model server failed")
			require.Equal(t, answer[:end], passed.String()[:end])
		}
		require.Equal(t, status, out.StatusCode)
		if status == 429 {
			header.Set("Retry-After", "1") // made, since the server gives none
		}
		if events && out.Header.Get("Content-Type") == "text/event-stream" {
			header.Set("Content-Type", "text/event-stream")
		}
		require.Equal(t, header, out.Header)
	}
	rapid.Check(t, func(t *rapid.T) {
		for range 10 { // faults are rare
			exchange(t)
		}
	})
	require.Zero(t, router.Stats().OpenLeases)
}
