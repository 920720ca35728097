package transport_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/transporttest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A server may close an idle connection at the very moment that it is used for
// the next request. That is not a failure of the server, even if it is the only
// one, and nothing is sent twice that must not be.
func TestAnIdleConnectionThatIsClosedCostsNoAttempt(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	reset := func(c *net.TCPConn, _ *bufio.Reader) { c.SetLinger(0) }
	for name, leave := range map[string]func(*net.TCPConn, *bufio.Reader){ // on the second request
		"at its first byte":   func(_ *net.TCPConn, in *bufio.Reader) { in.Peek(1) },
		"reset at its first":  func(c *net.TCPConn, in *bufio.Reader) { in.Peek(1); reset(c, in) },
		"behind its header":   func(_ *net.TCPConn, in *bufio.Reader) { http.ReadRequest(in) },
		"reset behind header": func(c *net.TCPConn, in *bufio.Reader) { http.ReadRequest(in); reset(c, in) },
		"when it has read it": readWhole,
		"before, at once":     func(*net.TCPConn, *bufio.Reader) {},
		"before, at any time": func(*net.TCPConn, *bufio.Reader) { time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond) },
	} {
		t.Run(name, func(t *testing.T) {
			s := startLeaver(t, leave)
			for _, tc := range []struct {
				path, body string
				twice      bool // may be sent again
			}{
				{chatPath, chatAtOnce, true},
				{chatPath, `{"model":"m","prompt":"` + long + `"}`, true},
				{"/v1/some_order", `{"lora_name":"x"}`, false},
				{"/v1/some_order", `{"lora_name":"` + long + `"}`, false},
				{"/version", "", true},
			} {
				s.connections.Store(0)
				s.answered.Store(0)
				w := newWorld(t, transport.Config{}, s.address)
				const n = 10
				for range n {
					req := post(t, tc.path, tc.body)
					if tc.body == "" {
						req = getting(tc.path)
					}
					_, body := w.ok(t, req)
					require.Equal(t, "{}", body)
					time.Sleep(time.Duration(rand.IntN(100)) * time.Microsecond)
				}
				assert.EqualValues(t, n, s.answered.Load())
				if !tc.twice {
					assert.EqualValues(t, n, s.connections.Load(), "none was used twice")
				}
				assert.Len(t, w.observer.all(), n, "attempts")
				assert.Equal(t, transport.Stats{Requests: n}, w.t.Stats())
				w.idle(t)
				w.t.CloseIdleConnections()
			}
		})
	}
}

// When many idle connections are closed at once, as when a server restarts, only the
// first one is tried: then the request gets a connection of its own.
func TestManyIdleConnectionsThatAreClosed(t *testing.T) {
	const many = 12
	var connections atomic.Int64
	arrived := make(chan bool, many)
	release := make(chan struct{})
	w := newWorld(t, transport.Config{MaxAttempts: 1}, accepts(t, func(c *net.TCPConn, in *bufio.Reader, req *http.Request) {
		n := connections.Add(1)
		io.Copy(io.Discard, req.Body)
		if n <= many {
			arrived <- true
			<-release // so that all are open at once
		}
		io.WriteString(c, emptyObject)
		in.Peek(1) // the second request is not read, so that writing it fails
		c.SetLinger(0)
	}))
	var clients sync.WaitGroup
	for range many {
		clients.Go(func() { w.ok(t, post(t, chatPath, chatAtOnce)) })
	}
	for range many {
		<-arrived
	}
	close(release)
	clients.Wait()
	_, body := w.ok(t, post(t, chatPath, `{"model":"m","prompt":"`+strings.Repeat("x", 8<<20)+`"}`))
	assert.Equal(t, "{}", body)
	assert.EqualValues(t, many+1, connections.Load())
	w.t.CloseIdleConnections()
}

// With a host's Base a new connection can't be forced. A request that must not
// be sent twice is then repeated only if nothing of it was sent.
func TestIdleConnectionsOfAnotherBase(t *testing.T) {
	s := startLeaver(t, readWhole)
	for _, tc := range []struct {
		path, body string
		want       int
	}{{chatPath, chatAtOnce, 200}, {"/v1/some_order", `{"lora_name":"x"}`, 502}} {
		w := newWorld(t, transport.Config{Base: &http.Transport{}}, s.address)
		w.ok(t, post(t, chatPath, chatAtOnce))
		_, _, err := w.do(t, post(t, tc.path, tc.body))
		assert.Equal(t, tc.want, transport.StatusOf(err), "%v", err)
		w.t.CloseIdleConnections()
	}
	tries := 0
	w := newWorld(t, transport.Config{Base: rig.RoundTrip(func(r *http.Request) (*http.Response, error) {
		if tries++; tries < 3 {
			httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{Reused: true})
			return nil, errors.New("http: server closed idle connection")
		}
		return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("data: [DONE]\n\n"))}, nil
	})}, "x:1")
	w.ok(t, post(t, "/v1/some_order", `{"lora_name":"x"}`))
	assert.Equal(t, 3, tries)
	w.ok(t, post(t, chatPath, chatStream))
}

// A Base may leave out what http.Client fills in; one that returns nothing at all has failed.
func TestABaseThatReturnsNothing(t *testing.T) {
	response := &http.Response{StatusCode: 204}
	w := newWorld(t, transport.Config{Base: rig.RoundTrip(func(*http.Request) (*http.Response, error) { return response, nil })}, "x:1")
	w.gets(t, 204, post(t, chatPath, chatAtOnce))
	response = nil
	_, _, err := w.do(t, post(t, chatPath, chatAtOnce))
	assert.Equal(t, 502, transport.StatusOf(err), "%v", err)
}

// A server that closes a new connection, or closes after its first byte, has
// failed.
func TestAServerThatBreaksOffIsNotAskedAgain(t *testing.T) {
	for _, tc := range []struct {
		name             string
		reused, answered bool
		err              error
		tries            int
	}{
		{"a new connection", false, false, io.EOF, 1},
		{"it has answered", true, true, io.ErrUnexpectedEOF, 1},
		{"something else", true, false, errors.New("malformed response"), 1},
		{"a timeout", true, false, &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, 1},
		{"nor for ever", true, false, io.EOF, 4},
	} {
		tries := 0
		w := newWorld(t, transport.Config{Base: rig.RoundTrip(func(r *http.Request) (*http.Response, error) {
			tries++
			trace := httptrace.ContextClientTrace(r.Context())
			if tc.reused {
				trace.GotConn(httptrace.GotConnInfo{Reused: true})
			}
			if tc.answered {
				trace.GotFirstResponseByte()
			}
			return nil, tc.err
		})}, "x:1")
		_, _, err := w.do(t, post(t, chatPath, chatAtOnce))
		assert.Error(t, err, tc.name)
		assert.Equal(t, tc.tries, tries, tc.name)
	}
}

// leaver answers the first request on each connection and then closes it.
type leaver struct {
	address               string
	connections, answered atomic.Int64
}

func readWhole(_ *net.TCPConn, in *bufio.Reader) {
	if req, err := http.ReadRequest(in); err == nil {
		io.Copy(io.Discard, req.Body)
	}
}

func startLeaver(t testing.TB, leave func(*net.TCPConn, *bufio.Reader)) *leaver {
	s := new(leaver)
	s.address = accepts(t, func(conn *net.TCPConn, in *bufio.Reader, req *http.Request) {
		s.connections.Add(1)
		io.Copy(io.Discard, req.Body)
		assert.NotContains(t, req.Header, "X-Idempotency-Key", "the client did not send it")
		s.answered.Add(1)
		fmt.Fprint(conn, emptyObject)
		conn.SetReadDeadline(time.Now().Add(10 * time.Second)) // in case none comes
		leave(conn, in)
	})
	return s
}

const emptyObject = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"

// accepts is a server whose connections are served by hand, each from the header of its first request on.
func accepts(t testing.TB, serve func(conn *net.TCPConn, in *bufio.Reader, first *http.Request)) (address string) {
	l := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				if req, err := http.ReadRequest(in); err == nil {
					serve(conn.(*net.TCPConn), in, req)
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	return l.Addr().String()
}

// Engines get bodies of any length whole, including inserted fields, and again after an
// engine that did not read to the end.
func TestBodiesOfAnyLengthArriveWhole(t *testing.T) {
	deaf := accepts(t, func(_ *net.TCPConn, _ *bufio.Reader, r *http.Request) { _, _ = io.CopyN(io.Discard, r.Body, 1000) })
	e := startEngine(t, nil)
	w := newWorld(t, transport.Config{RetryBurst: 1000, RetryShare: 1}, deaf, e.URL)
	const head, tail = `{"model":"m","stream":true,"messages":[{"role":"user","content":"`, `"}]}`
	for _, length := range []int{1, 3 << 10, 4 << 10, 15 << 10, 16<<10 - 200, 16 << 10, 17 << 10, 32 << 10, 100_000, 1<<20 + 1, 5 << 20} {
		var text strings.Builder
		for i := 0; text.Len() < length; i++ {
			fmt.Fprintf(&text, "%d ", i)
		}
		body := head + text.String() + tail
		w.ok(t, post(t, chatPath, body))
		want := `{"stream_options":{"include_usage":true},` + body[1:]
		got := e.lastBody()
		require.Equal(t, len(want), len(got))
		require.True(t, want == got, "%d bytes", length)
	}
	assert.NotZero(t, w.t.Stats().Retries)
	w.idle(t)
}

func TestTargets(t *testing.T) {
	e := startEngine(t, func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		fmt.Fprint(w, r.Proto, " ", r.Host, " ", r.URL.RequestURI(), " rank=", r.Header.Get("X-Data-Parallel-Rank"))
		return true
	})
	host := strings.TrimPrefix(e.URL, "http://")
	h2c, _ := startH2C(t, e)
	for _, tc := range []struct {
		endpoint endpick.Endpoint
		want     string
	}{
		{endpick.Endpoint{Address: host}, "HTTP/1.1 " + host + " /v1/embeddings?a=b rank="},
		{endpick.Endpoint{Address: e.URL + "/"}, "HTTP/1.1 " + host + " /v1/embeddings?a=b rank="},
		{endpick.Endpoint{Address: e.URL + "/base/"}, "HTTP/1.1 " + host + " /base/v1/embeddings?a=b rank="},
		{endpick.Endpoint{Address: host, Ranked: true, Rank: 3}, "HTTP/1.1 " + host + " /v1/embeddings?a=b rank=3"},
		{endpick.Endpoint{Address: host, Ranked: true}, "HTTP/1.1 " + host + " /v1/embeddings?a=b rank=0"},
		{endpick.Endpoint{Address: h2c}, "HTTP/2.0 " + strings.TrimPrefix(h2c, "h2c://") + " /v1/embeddings?a=b rank="},
	} {
		w := newWorld(t, transport.Config{})
		require.NoError(t, w.router.Add(tc.endpoint))
		_, body := w.ok(t, post(t, "/v1/embeddings?a=b", `{"model":"m"}`, "X-Data-Parallel-Rank", "7"))
		assert.Equal(t, tc.want, body)
	}
	w := newWorld(t, transport.Config{Base: http.DefaultTransport}, "h2c://"+host)
	_, body := w.ok(t, post(t, "/v1/embeddings", `{"model":"m"}`))
	assert.Contains(t, body, "HTTP/1.1", "a Base of the caller's own sees http")
}

// A Wrap around the transport's own connections sees every attempt and breaks none: not
// HTTP/2 in the clear, not even if it repeats requests itself.
func TestWrap(t *testing.T) {
	h2c, open := startH2C(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != chatPath {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, r.Proto)
	}))
	dead := nobody()
	var asked rig.List[string]
	wraps := 0
	w := newWorld(t, transport.Config{Wrap: func(base http.RoundTripper) http.RoundTripper {
		wraps++
		return rig.RoundTrip(func(r *http.Request) (*http.Response, error) {
			asked.Add(r.URL.Scheme + " " + r.URL.Host)
			if resp, err := base.RoundTrip(r); err == nil {
				resp.Body.Close()
			}
			if r.GetBody != nil {
				r.Body, _ = r.GetBody()
			}
			return base.RoundTrip(r)
		})
	}}, dead, h2c)
	_, body := w.ok(t, post(t, chatPath, chatAtOnce))
	assert.Equal(t, "HTTP/2.0", body)
	assert.Equal(t, 1, wraps)
	w.gets(t, http.StatusNotFound, getting("/v1/models")) // nobody tells his models
	hosts := asked.Take()
	require.Len(t, hosts, 4)
	second := strings.Replace(h2c, "://", " ", 1)
	assert.Equal(t, []string{"http " + dead, second}, hosts[:2])
	assert.Contains(t, hosts[2:], second, "lists of models come that way, too")
	require.Positive(t, open.Load())
	assert.Eventually(t, func() bool {
		w.t.CloseIdleConnections()
		return open.Load() == 0
	}, 30*time.Second, time.Millisecond)

	_, err := transport.New(transport.Config{Router: w.router, Wrap: func(http.RoundTripper) http.RoundTripper { return nil }})
	assert.EqualError(t, err, "endpick: config: transport.Config.Wrap has returned nil")
}

// The credentials before the @ of an address are for its server: only that server
// gets them.
func TestCredentialsOfAnAddressAreForTheServer(t *testing.T) {
	e := startEngine(t, func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		user, password, _ := r.BasicAuth()
		fmt.Fprint(w, user, " ", password, " ", r.Header.Get("Authorization"))
		return true
	})
	host := strings.TrimPrefix(e.URL, "http://")
	for _, address := range []string{"http://ann:s3cret%40@" + host, "ann:s3cret%40@" + host + "/base"} {
		w := newWorld(t, transport.Config{EnableEndpointHeader: true})
		w.add(t, "", address)
		resp, body := w.ok(t, post(t, "/v1/embeddings", `{"model":"m"}`, "Authorization", "Bearer of-the-client"))
		assert.Equal(t, "ann s3cret@ Basic YW5uOnMzY3JldEA=", body)
		assert.Contains(t, resp.Header.Get(transport.EndpointHeader), host)
		assert.NotContains(t, resp.Header.Get(transport.EndpointHeader), "s3cret")

		to := rig.Must(transport.Target(&endpick.Endpoint{ID: "e", Address: address}, &url.URL{Path: "/metrics"}))
		assert.Equal(t, "ann", to.User.Username(), "for callers of Target")
	}
	w := newWorld(t, transport.Config{}, e.URL)
	_, body := w.ok(t, post(t, "/v1/embeddings", `{"model":"m"}`, "Authorization", "Bearer of-the-client"))
	assert.Equal(t, "  Bearer of-the-client", body)

	// A host's Base may log or trace the URL.
	w = newWorld(t, transport.Config{Base: rig.RoundTrip(func(r *http.Request) (*http.Response, error) {
		assert.Equal(t, "http://"+host+"/v1/embeddings", r.URL.String())
		return http.DefaultTransport.RoundTrip(r)
	})})
	w.add(t, "", "http://ann:s3cret@"+host)
	_, body = w.ok(t, post(t, "/v1/embeddings", `{"model":"m"}`))
	assert.Equal(t, "ann s3cret Basic YW5uOnMzY3JldA==", body)

	// An invalid address does not show them either.
	w = newWorld(t, transport.Config{})
	w.add(t, "", "ftp://ann:s3cret@host")
	_, _, err := w.do(t, post(t, "/v1/embeddings", `{"model":"m"}`))
	require.ErrorIs(t, err, transport.ErrAddress)
	assert.NotContains(t, err.Error(), "s3cret")
	_, err = transport.New(transport.Config{Router: w.router})
	require.ErrorAs(t, err, new(*endpick.ConfigError))
	assert.NotContains(t, err.Error(), "s3cret")
}

// An invalid address is an error of New; in an endpoint added later it fails no
// request: another endpoint takes it, and the host is told.
func TestBadAddressesAreTold(t *testing.T) {
	good := startEngine(t, nil)
	for _, bad := range []string{"ftp://x", "http://", ":80", "http://[::1"} {
		router := rig.Must(endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "a", Address: bad}}}))
		_, err := transport.New(transport.Config{Router: router})
		assert.Equal(t, "transport.Config.Router", rig.Field(nil, err), bad)
		assert.ErrorContains(t, err, `"a"`)

		w := newWorld(t, transport.Config{})
		w.add(t, "a", bad)
		w.add(t, "b", good.URL)
		w.ok(t, post(t, "/v1/responses", `{"model":"m","input":"hi","tools":[{"type":"mcp"}]}`)) // which is not sent twice
		require.Len(t, w.warnings, 1)
		assert.ErrorIs(t, w.warnings[0], transport.ErrAddress)
		var ue *transport.UpstreamError
		require.ErrorAs(t, w.warnings[0], &ue)
		assert.Equal(t, "a", ue.Endpoint)
		w.idle(t)
	}
}

// A redirect of an endpoint to itself does not tell clients where that is; one to elsewhere leads there.
func TestRedirectsStayAtTheGateway(t *testing.T) {
	var location string
	engine := startEngine(t, func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		w.Header().Set("Location", strings.ReplaceAll(location, "ENGINE", "http://"+r.Host))
		w.WriteHeader(http.StatusTemporaryRedirect)
		return true
	})
	for _, base := range []string{"", "/base", "/base/"} {
		for from, want := range map[string]string{
			"ENGINE/base/v1/files/": "/v1/files/", "/base/v1/files/?a=b&c=%2F": "/v1/files/?a=b&c=%2F", "ENGINE/base": "/", "http://elsewhere/v1/x": "http://elsewhere/v1/x",
			"//elsewhere/v1/x": "//elsewhere/v1/x", "ENGINE/base//elsewhere/": "/elsewhere/", "https://u:p@127.0.0.1/base/v1/x": "/v1/x", "http://%zz": "", "": "",
		} {
			if base == "" {
				from = strings.ReplaceAll(from, "/base", "")
			}
			location = from
			w := newWorld(t, transport.Config{}, engine.URL+base)
			response := rig.Must(w.t.RoundTrip(getting("/v1/files")))
			require.NoError(t, response.Body.Close())
			assert.Equal(t, want, response.Header.Get("Location"), "%s at %q", from, base)
			w.t.CloseIdleConnections()
		}
	}

	w := newWorld(t, transport.Config{}, engine.URL, startEngine(t, nil).URL)
	for _, query := range []string{"", "?beta=true"} {
		location = "https://engine" + chatPath + query
		w.ok(t, post(t, chatPath+query, chatStream)) // the client would be led to the gateway again
	}
	_, _, err := newWorld(t, transport.Config{}, engine.URL).do(t, getting("/v1/models"))
	assert.ErrorContains(t, err, "answered 307")
}

// startRaw is a server that reads the header of a request on each connection,
// sends these bytes and closes it.
func startRaw(t testing.TB, answer string) string {
	return accepts(t, func(conn *net.TCPConn, _ *bufio.Reader, req *http.Request) {
		assert.Empty(t, req.Header.Get("Expect"), "the body is not waited for")
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
	_, _, err := w.do(t, getting("/v1/models"))
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
		assert.Less(t, rig.Allocated(func() {
			resp := rig.Must(w.client.Do(post(t, chatPath, chatStream)))
			defer resp.Body.Close()
			assert.EqualValues(t, size, rig.Must(io.Copy(io.Discard, resp.Body)))
		}), 8<<20, kind)
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
		w := newWorld(t, transport.Config{MaxAttempts: 1, Base: rig.RoundTrip(func(*http.Request) (*http.Response, error) {
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
			rig.Must(io.WriteString(c, "POST "+chatPath+" HTTP/1.1\r\nHost: gateway\r\n"+head))
			r := bufio.NewReader(c)
			resp, err := http.ReadResponse(r, nil)
			for err == nil && resp.StatusCode == http.StatusContinue {
				resp, err = http.ReadResponse(r, nil)
			}
			require.NoError(t, err)
			body := rig.Must(io.ReadAll(resp.Body))
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
		stops := rig.Reader(func([]byte) (int, error) { <-rest; return 0, io.EOF })
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
	rig.Must(io.WriteString(c, "GET /v1/realtime HTTP/1.1\r\nHost: gateway\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"))
	r := bufio.NewReader(c)
	require.Equal(t, 101, rig.Must(http.ReadResponse(r, nil)).StatusCode)
	rig.Must(io.WriteString(c, "hello"))
	require.NoError(t, c.CloseWrite())
	assert.Equal(t, `you have said "hello"`, string(rig.Must(io.ReadAll(r))))
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
