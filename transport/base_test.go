package transport_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
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
						req = getting(t, tc.path)
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
	w := newWorld(t, transport.Config{Base: tripper(func(r *http.Request) (*http.Response, error) {
		if tries++; tries < 3 {
			httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{Reused: true})
			return nil, errors.New("http: server closed idle connection")
		}
		return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}, nil
	})}, "x:1")
	w.ok(t, post(t, "/v1/some_order", `{"lora_name":"x"}`))
	assert.Equal(t, 3, tries)
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
		w := newWorld(t, transport.Config{Base: tripper(func(r *http.Request) (*http.Response, error) {
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
		if _, sent := req.Header["X-Idempotency-Key"]; sent {
			t.Error("a header was sent that the client did not send")
		}
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
		_, body := w.ok(t, post(t, "/v1/embeddings?a=b", `{"model":"m"}`))
		assert.Equal(t, tc.want, body)
	}
	w := newWorld(t, transport.Config{Base: http.DefaultTransport}, "h2c://"+host)
	_, body := w.ok(t, post(t, "/v1/embeddings", `{"model":"m"}`))
	assert.Contains(t, body, "HTTP/1.1", "a Base of the caller's own sees http")
	for _, bad := range []string{"", "ftp://x", "http://", ":80", "http://[::1"} {
		w := newWorld(t, transport.Config{})
		w.add(t, "bad", bad)
		_, _, err := w.do(t, post(t, chatPath, chatAtOnce))
		assert.ErrorIs(t, err, transport.ErrAddress, bad)
		w.idle(t)
	}
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
	dead := nobody(t)
	var mu sync.Mutex
	var hosts []string
	wraps := 0
	w := newWorld(t, transport.Config{Wrap: func(base http.RoundTripper) http.RoundTripper {
		wraps++
		return tripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			hosts = append(hosts, r.URL.Scheme+" "+r.URL.Host)
			mu.Unlock()
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
	w.gets(t, http.StatusNotFound, getting(t, "/v1/models")) // nobody tells his models
	mu.Lock()
	defer mu.Unlock()
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
	w = newWorld(t, transport.Config{Base: tripper(func(r *http.Request) (*http.Response, error) {
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
		var ce *endpick.ConfigError
		require.ErrorAs(t, err, &ce, bad)
		assert.Equal(t, "transport.Config.Router", ce.Field)
		assert.Contains(t, ce.Reason, `"a"`)

		w := newWorld(t, transport.Config{})
		w.add(t, "a", bad)
		w.add(t, "b", good.URL)
		w.ok(t, post(t, chatPath, chatAtOnce))
		require.Len(t, w.warnings, 1)
		assert.ErrorIs(t, w.warnings[0], transport.ErrAddress)
		var ue *transport.UpstreamError
		require.ErrorAs(t, w.warnings[0], &ue)
		assert.Equal(t, "a", ue.Endpoint)
		w.idle(t)
	}
}

// A redirect of an endpoint does not tell clients where that is.
func TestRedirectsStayAtTheGateway(t *testing.T) {
	var location string
	engine := startEngine(t, func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		w.Header().Set("Location", strings.ReplaceAll(location, "ENGINE", "http://"+r.Host))
		w.WriteHeader(http.StatusTemporaryRedirect)
		return true
	})
	for _, base := range []string{"", "/base", "/base/"} {
		for from, want := range map[string]string{
			"ENGINE/base/v1/files/": "/v1/files/", "/base/v1/files/?a=b&c=%2F": "/v1/files/?a=b&c=%2F", "ENGINE/base": "/", "http://elsewhere/base/v1/x": "/v1/x",
			"//elsewhere/base/v1/x": "/v1/x", "http://u:p@h:1/base//elsewhere/": "/elsewhere/", "http://%zz": "", "": "",
		} {
			if base == "" {
				from = strings.ReplaceAll(from, "/base", "")
			}
			location = from
			w := newWorld(t, transport.Config{}, engine.URL+base)
			response, err := w.t.RoundTrip(getting(t, "/v1/files"))
			require.NoError(t, err)
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
	_, _, err := newWorld(t, transport.Config{}, engine.URL).do(t, getting(t, "/v1/models"))
	assert.ErrorContains(t, err, "answered 307")
}
