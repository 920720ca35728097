package transport_test

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick/transport"
)

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
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	require.NoError(t, err)
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
		req, err := http.NewRequest(http.MethodPost, s.URL+chatPath, io.MultiReader(strings.NewReader("{"), stops))
		require.NoError(t, err)
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
