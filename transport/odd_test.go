package transport_test

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/transporttest"
)

// startRaw is a server that reads the header of a request on each connection,
// sends these bytes and closes it.
func startRaw(t testing.TB, answer string) string {
	return accepts(t, func(conn *net.TCPConn, _ *bufio.Reader, req *http.Request) {
		if req.Header.Get("Expect") != "" {
			t.Error("the body is not waited for, so nothing is to be expected")
		}
		io.WriteString(conn, answer)
		io.Copy(io.Discard, req.Body)
	})
}

// Responses from servers with an unusual use of HTTP are passed on unchanged,
// others fail; none leaves anything open.
func TestOddServers(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
	for _, tc := range []struct {
		name, method, request, answer string
		status                        int // 0: none
		body                          string
		breaks                        bool
		outcome                       endpick.Status
	}{
		{name: "early hints", answer: "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ok + "Content-Length: 2\r\n\r\n{}", status: 200, body: "{}"},
		{name: "continue, unasked", answer: "HTTP/1.1 100 Continue\r\n\r\n" + ok + "Content-Length: 2\r\n\r\n{}", status: 200, body: "{}"},
		{name: "no content", answer: "HTTP/1.1 204 No Content\r\n\r\n", status: 204},
		{name: "not modified", method: "GET", answer: "HTTP/1.1 304 Not Modified\r\nEtag: x\r\n\r\n", status: 304},
		{name: "a head", method: "HEAD", answer: ok + "Content-Length: 1000\r\n\r\n", status: 200},
		{name: "to the end of the connection", answer: ok + "Connection: close\r\n\r\n{}", status: 200, body: "{}"},
		{name: "less than announced", answer: ok + "Content-Length: 10\r\n\r\n{}", outcome: endpick.Failed},
		{name: "half, to the end of the connection", answer: ok + "Connection: close\r\n\r\n{\"a\":", outcome: endpick.Failed},
		{name: "more than announced", answer: ok + "Content-Length: 2\r\n\r\n{}{}", status: 200, body: "{}"},
		{name: "nothing of what was announced", answer: ok + "Content-Length: 10\r\n\r\n", outcome: endpick.Failed},
		{name: "a length that is none", answer: ok + "Content-Length: x\r\n\r\n{}", outcome: endpick.Failed},
		{name: "a chunk that is none", answer: ok + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nx\r\n", status: 200, body: "{}", breaks: true, outcome: endpick.Failed},
		{name: "an empty stream", request: chatStream, answer: "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 0\r\n\r\n", outcome: endpick.Failed},
		{name: "a status that is none", answer: "HTTP/1.1 099 x\r\nContent-Length: 0\r\n\r\n", outcome: endpick.Failed},
		{name: "no HTTP", answer: "hello\r\n\r\n", outcome: endpick.Failed},
		{name: "a header without end", answer: ok + strings.Repeat("X-Header: "+strings.Repeat("x", 1000)+"\r\n", 4000), outcome: endpick.Failed},
		{name: "a refusal before the body is read", request: `{"model":"m","prompt":"` + strings.Repeat("x", 1<<20) + `"}`,
			answer: "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n{}", status: 413, body: "{}", outcome: endpick.Refused},
		{name: "an answer before the body is read", request: `{"model":"m","prompt":"` + strings.Repeat("x", 1<<20) + `"}`,
			answer: ok + "Content-Length: 2\r\n\r\n{}", status: 200, body: "{}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, transport.Config{}, startRaw(t, tc.answer))
			if tc.request == "" {
				tc.request = chatAtOnce
			}
			req := post(t, chatPath, tc.request, "Expect", "100-continue")
			if tc.method != "" {
				req, _ = http.NewRequest(tc.method, "http://gateway/version", nil)
			}
			resp, body, err := w.do(t, req)
			if tc.status == 0 {
				require.Error(t, err)
			} else {
				require.NotNil(t, resp, err)
				assert.Equal(t, tc.status, resp.StatusCode)
				assert.Equal(t, tc.body, body)
				assert.Equal(t, tc.breaks, err != nil, "%v", err)
			}
			assert.Equal(t, tc.outcome, w.outcome(t).Status)
			w.idle(t)
		})
	}
}

// Nor does a list of models have a status that is none.
func TestModelsOfAnOddServer(t *testing.T) {
	w := newWorld(t, transport.Config{}, startRaw(t, "HTTP/1.1 099 x\r\nContent-Length: 0\r\n\r\n"))
	_, _, err := w.do(t, getting(t, "/v1/models"))
	assert.Equal(t, http.StatusBadGateway, transport.StatusOf(err))
}

func TestInformationAndTrailersPass(t *testing.T) {
	w := newWorld(t, transport.Config{}, startRaw(t, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"+
		"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n"+
		"e\r\ndata: [DONE]\n\n\r\n0\r\nX-Sum: 7\r\n\r\n"))
	var hint string
	req := post(t, chatPath, chatStream)
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, h textproto.MIMEHeader) error { hint = h.Get("Link"); return nil },
	}))
	resp, _ := w.ok(t, req)
	assert.Equal(t, "x", hint)
	assert.Equal(t, http.Header{"X-Sum": {"7"}}, resp.Trailer)
}

// A stream from an API that has none is passed on all the same.
func TestStreamsWhereNobodyStreams(t *testing.T) {
	const said = "data: {\"error\":{}}\n\ndata: {\"usage\":{}}\n\n"
	w := newWorld(t, transport.Config{}, startEngine(t, sse(said)).URL)
	for _, path := range []string{
		"/v1/messages/count_tokens", "/v1/chat/completions/input_tokens", "/v1/responses/input_tokens", "/v1/embeddings", "/pooling", "/v1/rerank", "/score", "/tokenize", "/x",
	} {
		_, body := w.ok(t, post(t, path, `{"model":"m","stream":true,"messages":[{"role":"user","content":"a"}],"input":"a","query":"a","documents":["b"],"prompt":"a"}`))
		assert.Equal(t, said, body, path)
		w.idle(t)
	}
}

// The unpacked form of a compressed response is not buffered.
func TestACompressedFloodIsPassedOnAsItComes(t *testing.T) {
	const size = 64 << 20
	packed := zipped(strings.Repeat("x", size))
	for _, kind := range []string{"text/event-stream", "application/json"} {
		e := startEngine(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			w.Header().Set("Content-Encoding", "gzip")
			return says(kind, packed)(w, nil, nil)
		})
		w := newWorld(t, transport.Config{}, e.URL)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		resp, err := w.client.Do(post(t, chatPath, chatStream))
		require.NoError(t, err)
		n, err := io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		resp.Body.Close()
		runtime.ReadMemStats(&after)
		assert.EqualValues(t, size, n)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20), kind)
	}
}

// A refusal that was checked at a second endpoint reaches the client whole, however long it is.
func TestALongRefusalStaysWhole(t *testing.T) {
	long := strings.Repeat("the model does not exist; ", 1000)
	a, b := startEngine(t, status(404, long)), startEngine(t, status(503))
	w := newWorld(t, transport.Config{}, a.URL, b.URL)
	for range 2 {
		_, body := w.gets(t, http.StatusNotFound, post(t, chatPath, chatStream))
		assert.Equal(t, long, body)
	}
	assert.EqualValues(t, 2, b.requests.Load(), "it might have the model")
	w.idle(t)
}

// Long headers pass, up to a limit.
func TestHeadersOfResponsesAreBounded(t *testing.T) {
	e := startEngine(t, func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		n, _ := strconv.Atoi(r.Header.Get("X-Name"))
		w.Header().Set("X-Long", strings.Repeat("x", n))
		return false
	})
	w := newWorld(t, transport.Config{MaxAttempts: 1}, e.URL)
	resp, _ := w.ok(t, post(t, chatPath, chatStream, "X-Name", "1000000"))
	assert.Len(t, resp.Header.Get("X-Long"), 1_000_000)
	_, _, err := w.do(t, post(t, chatPath, chatStream, "X-Name", "2000000"))
	assert.Equal(t, 502, transport.StatusOf(err))
	w.idle(t)
}

// A server that switches to a protocol that it was not asked for has not answered, whatever it was asked. Nothing
// ends the body of such an answer.
func TestAnUpgradeThatNobodyAskedFor(t *testing.T) {
	for _, header := range []http.Header{{"Upgrade": {"echo"}}, {}} {
		var open atomic.Int32
		near, _ := net.Pipe()
		w := newWorld(t, transport.Config{MaxAttempts: 1, Base: tripper(func(*http.Request) (*http.Response, error) {
			open.Add(1)
			return &http.Response{StatusCode: 101, Header: header, Body: struct {
				io.ReadCloser
				io.Writer // as net/http has it
			}{&closing{ReadCloser: near, open: &open}, near}}, nil
		})}, "a", "b", "c")
		for _, in := range []*http.Request{post(t, chatPath, chatStream), httptest.NewRequest("GET", "/v1/models", nil)} {
			_, err := w.t.RoundTrip(in)
			assert.ErrorContains(t, err, "not asked for", in.URL.Path)
			assert.Equal(t, 502, transport.StatusOf(err))
			assert.Zero(t, open.Load())
		}
	}
}

// The time a request was held ends when it is first routed, not when it is last routed.
func TestHeldUntilTheFirstAttempt(t *testing.T) {
	var ahead atomic.Int64
	a := startEngine(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		ahead.Add(int64(time.Hour))
		return status(500)(w, nil, nil)
	})
	b := startEngine(t, nil)
	w, reported := watchedOf(t, transport.Config{Queue: one(queue.Config{})}, endpick.Config{
		Clock: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) },
	}, a.URL, b.URL)
	w.ok(t, post(t, chatPath, chatStream))
	r := next(t, reported)
	require.Len(t, r.Attempts, 2)
	assert.Less(t, r.Held, time.Hour)
	assert.GreaterOrEqual(t, r.Attempts[1].At.Sub(r.Attempts[0].At), time.Hour)
}

func proxy(tr *transport.Transport) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(*httputil.ProxyRequest) {}, Transport: tr, ErrorHandler: transport.ErrorHandler, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
	}
}

// front is a reverse proxy with the transport of w, over HTTP/1.1 and h2c.
func front(t testing.TB, w *world, change ...func(*http.Server)) *httptest.Server {
	s := httptest.NewUnstartedServer(proxy(w.t))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	for _, f := range change {
		f(s.Config)
	}
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// connect opens a connection to a server, with thirty seconds for everything.
func connect(t testing.TB, s *httptest.Server) *net.TCPConn {
	c := rig.Must(net.Dial("tcp", s.Listener.Addr().String()))
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(30*time.Second)))
	return c.(*net.TCPConn)
}

// A client whose body is too slow gets a 408, and no server is contacted.
func TestASlowBodyIs408(t *testing.T) {
	e := startEngine(t, nil)
	w := newWorld(t, transport.Config{}, e.URL)
	s := front(t, w, func(s *http.Server) { s.ReadTimeout = 100 * time.Millisecond })
	for name, head := range map[string]string{
		"a length": "Content-Length: 100\r\n\r\n{", "chunks": "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", "half a chunk": "Transfer-Encoding: chunked\r\n\r\nff\r\n{",
		"after 100-continue": "Content-Length: 100\r\nExpect: 100-continue\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := connect(t, s)
			_, err := io.WriteString(c, "POST "+chatPath+" HTTP/1.1\r\nHost: gateway\r\n"+head)
			require.NoError(t, err)
			r := bufio.NewReader(c)
			resp, err := http.ReadResponse(r, nil)
			for err == nil && resp.StatusCode == http.StatusContinue {
				resp, err = http.ReadResponse(r, nil)
			}
			require.NoError(t, err)
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			assert.Equal(t, 408, resp.StatusCode)
			assert.True(t, resp.Close, "what may still come is not another request")
			assert.JSONEq(t, `{"error":{"message":"the request body did not come in time","type":"invalid_request_error","param":null,"code":"408"}}`, string(body))
		})
	}
	t.Run("HTTP/2", func(t *testing.T) {
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		h2 := &http.Transport{Protocols: protocols}
		defer h2.CloseIdleConnections()
		rest := make(chan struct{})
		stops := reads(func([]byte) (int, error) { <-rest; return 0, io.EOF })
		req := rig.Must(http.NewRequest(http.MethodPost, s.URL+chatPath, io.MultiReader(strings.NewReader("{"), stops)))
		resp, err := h2.RoundTrip(req)
		close(rest)
		require.NoError(t, err)
		defer resp.Body.Close()
		assert.Equal(t, 408, resp.StatusCode)
	})
	assert.Zero(t, e.requests.Load())
	w.idle(t)
}

// After an upgrade, a client may close its direction and still read the rest.
func TestAnUpgradedConnectionMayBeHalfClosed(t *testing.T) {
	e := startEngine(t, upgrades(func(c *bufio.ReadWriter) {
		said, _ := io.ReadAll(c) // until its end
		fmt.Fprintf(c, "you have said %q", said)
	}))
	w := newWorld(t, transport.Config{}, e.URL)
	c := connect(t, front(t, w))
	_, err := io.WriteString(c, "GET /v1/realtime HTTP/1.1\r\nHost: gateway\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	require.NoError(t, err)
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.Equal(t, 101, resp.StatusCode)
	_, err = io.WriteString(c, "hello")
	require.NoError(t, err)
	require.NoError(t, c.CloseWrite())
	answer, err := io.ReadAll(r)
	require.NoError(t, err)
	assert.Equal(t, `you have said "hello"`, string(answer))
	w.idle(t)
}

func TestTransportConforms(t *testing.T) {
	require.GreaterOrEqual(t, len(transporttest.Faults()), 85)
	transporttest.Run(t, func(t *testing.T, router *endpick.Router) http.Handler {
		tr := rig.Must(transport.New(transport.Config{Router: router}))
		t.Cleanup(tr.CloseIdleConnections)
		return proxy(tr)
	})
}

// The example's gateway keeps correct accounts, however an engine misbehaves.
func TestTheDispatcherConforms(t *testing.T) {
	transporttest.Run(t, func(t *testing.T, router *endpick.Router) http.Handler {
		s := rig.Must(transport.NewDispatcher(transport.Config{Router: router}))
		base := &http.Transport{}
		t.Cleanup(base.CloseIdleConnections)
		return &gateway{dispatcher: s, client: &http.Client{Transport: base}}
	})
}
