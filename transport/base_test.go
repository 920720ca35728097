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
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
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
