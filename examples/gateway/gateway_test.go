package main

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/andybalholm/brotli"
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A server dies twice during conversations, and comes back with an empty cache: no request fails that
// had not received a byte yet.
func TestServersDie(t *testing.T) {
	for _, policy := range []string{"round-robin", "lmetric", "predicted-latency"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			f := startFleet(t, 4, 16384)
			config := rig.Must(traffic.ServerConfig(16384))
			g := gatewayOf(t, plain(policy), f.Endpoints()...)
			server := serving(t, g)
			c := traffic.NewClient(server.URL)
			defer c.Close()

			w := traffic.Workload{Duration: 1800 * time.Millisecond, Rate: 50, Groups: 6, SystemTokens: 1500, QuestionTokens: 80, OutputTokens: 48, Turns: 2, Think: 100 * time.Millisecond, Seed: 1}
			var group sync.WaitGroup
			group.Go(func() {
				// The same one twice: what is at two servers that die goes to no third.
				for range 2 {
					time.Sleep(400 * time.Millisecond)
					assert.NoError(t, f.Members[0].Kill())
					time.Sleep(150 * time.Millisecond)
					assert.NoError(t, f.Members[0].Start(config))
				}
			})
			samples := c.Play(t.Context(), w.Conversations(), func() {})
			group.Wait()

			var cut int
			for _, s := range samples {
				if s.Err != nil {
					assert.True(t, s.GotByte, "failed before its first byte: %v", s.Err)
					cut++
				}
			}
			t.Logf("%d requests, %d cut off after their first byte, %+v", len(samples), cut, g.transport.Stats())
			require.Greater(t, len(samples), 40)
			require.Less(t, cut, len(samples)/2)
			require.Positive(t, g.transport.Stats().Retries+g.transport.Stats().Resumed, "the kills were noticed")
			// Health checks may keep it out for some seconds after its return.
			require.Eventually(t, func() bool {
				_ = c.Ask(t.Context(), time.Now(), []traffic.Message{{Role: "user", Content: "Hello."}}, 1)
				return f.Members[0].Server.Totals().Completed > 0
			}, time.Minute, 20*time.Millisecond, "the server that came back is used again")
			// A client has its last byte slightly before the proxy closes the lease.
			rig.Idle(t, g.router)
		})
	}
}

// Servers interpret paths: a client that joins its base and "/v1" with two slashes must not be redirected.
func TestPathsPassAsTheyAre(t *testing.T) {
	var path string
	b := serving(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			path = r.RequestURI
		}
	}))
	g := newTestGateway(t, `{pass: [/], endpoints: [{url: "`+b.URL+`"}]}`)
	for _, want := range []string{"/v1/chat/completions", "/v1/files/", "/v1/files/a%20b", "/", "/readyz"} {
		path = ""
		require.Equal(t, http.StatusOK, askGateway(g, want).Code, want)
		require.Equal(t, want, path)
	}
	path = ""
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		require.Equal(t, 200, send(g, method, "/readyz", "").Code)
		require.Empty(t, path, "it is the gateway's")
	}
}

// A request that an endpoint sends back to its gateway ends there, instead of going round until
// there are no connections left.
func TestALoopIsCut(t *testing.T) {
	var served atomic.Int64
	loop := httptest.NewUnstartedServer(nil)
	b := newBackend(t)
	var logged rig.Output
	s := plain("random")
	s.Log.Requests = "failed"
	g := loggingGateway(t, &logged, s, endpick.Endpoint{ID: "loop", Address: "http://" + loop.Listener.Addr().String()})
	g.stop() // no polls
	loop.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Via") != "" { // a poll may have been under way
			served.Add(1)
		}
		g.ServeHTTP(w, r)
	})
	loop.Start()
	defer loop.Close()
	w := askGateway(g, "/v1/chat/completions", "Via", "1.1 proxy")
	require.Equal(t, http.StatusLoopDetected, w.Code)
	require.JSONEq(t, `{"error":{"message":"the request has come back: an endpoint leads to this gateway","type":"api_error","param":null,"code":"508"}}`, w.Body.String())
	require.Equal(t, "false", w.Header().Get("X-Should-Retry"), "SDKs would send it round twice more")
	require.EqualValues(t, 1, served.Load())
	require.Contains(t, logged.String(), "the request has come back: an endpoint leads to this gateway")
	require.Equal(t, http.StatusForbidden, askGateway(g, "/v1/chat/completions", "Origin", "http://other").Code)
	require.Regexp(t, `status=refused http=403 .* error="a page of an origin that the gateway's origins do not name"`, logged.String())
	require.Equal(t, http.StatusLoopDetected, send(g, http.MethodGet, "/v1/models", "").Code)
	require.EqualValues(t, 2, served.Load())

	require.NoError(t, g.router.Add(endpick.Endpoint{ID: "b", Address: b.URL}))
	for range 10 {
		require.Equal(t, http.StatusOK, askGateway(g, "/v1/chat/completions", "Via", "1.1 proxy").Code, "another server has it")
	}
	require.Len(t, b.last()["Via"], 2)
	require.Equal(t, "1.1 proxy", b.last()["Via"][0])
}

// Coding agents compress their requests; the model must be read nevertheless, and engines get what they can read.
func TestCompressedRequests(t *testing.T) {
	g := newTestGateway(t, `endpoints: [{url: "`+newBackend(t).URL+`", models: [m]}]`)
	const body = `{"model":"m","messages":[{"role":"user","content":"Hello."}]}`
	pack := func(coding string, text []byte) []byte {
		var packed bytes.Buffer
		var w io.WriteCloser
		switch coding {
		case "br":
			w = brotli.NewWriter(&packed)
		case "zstd":
			w, _ = zstd.NewWriter(&packed)
		}
		rig.Must(w.Write(text))
		require.NoError(t, w.Close())
		return packed.Bytes()
	}
	send := func(coding string, body []byte) int {
		return askFor(g, "/v1/chat/completions", string(body), "Content-Encoding", coding).Code
	}
	for _, coding := range []string{"br", "zstd"} {
		require.Equal(t, 200, send(coding, pack(coding, []byte(body))), coding)
		require.Equal(t, 400, send(coding, []byte(body)), "%s that is none", coding)
		require.Equal(t, 413, send(coding, pack(coding, make([]byte, 16<<20))), "a bomb in %s", coding)
		require.Equal(t, 404, send(coding, pack(coding, []byte(`{"model":"other","messages":[{}]}`))), coding)
	}
	require.Equal(t, 415, send("zstd, br", pack("br", pack("zstd", []byte(body)))), "one around another")
	require.Equal(t, 415, send("lz4", []byte("x")))
	require.Equal(t, 400, send("zstd", []byte("\x28\xb5\x2f\xfd\x00\xf8\x00\x00\x00")), "a window of gigabytes")
	require.Zero(t, g.router.Stats().OpenLeases)
}

// header is that of a request in HTTP/2.
func header(method, path string) []byte {
	var header bytes.Buffer
	encoder := hpack.NewEncoder(&header)
	for _, field := range [][2]string{{":method", method}, {":path", path}, {":scheme", "http"}, {":authority", "a"}} {
		_ = encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1], Sensitive: true})
	}
	return header.Bytes()
}

// Streams of HTTP/2 that are reset at once leave nothing behind.
func TestResetStreamsLeaveNothing(t *testing.T) {
	b := newBackend(t)
	c := startConfig(t, writeSettings(t, "listen: 127.0.0.1:0\nh2c: true\ntimeouts: {body: 1h, unread: 1h}\nlog: {requests: none}\nendpoints: [{url: \""+b.URL+"\"}]\n"))
	header := header("POST", "/v1/chat/completions")
	before, quiet := rig.Heap(), runtime.NumGoroutine()
	var all sync.WaitGroup
	connect := func() {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		all.Go(func() { _, _ = io.Copy(io.Discard, conn) })
		_, err = io.WriteString(conn, http2.ClientPreface)
		f := http2.NewFramer(conn, nil)
		assert.NoError(t, f.WriteSettings())
		for id := uint32(1); err == nil && id < 3000; id += 2 {
			if err = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: header, EndHeaders: true}); err == nil {
				err = f.WriteRSTStream(id, http2.ErrCodeCancel) // the gateway may have had enough
			}
		}
	}
	for range 2 {
		all.Go(func() {
			for range 4 {
				connect()
			}
		})
	}
	all.Wait()
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= quiet+10 }, time.Minute, 50*time.Millisecond)
	// Pools let go of what they have within some collections.
	assert.Eventually(t, func() bool { return rig.Heap()-before < 4<<20 }, time.Minute, 50*time.Millisecond, "a thousand of them are remembered")
}
