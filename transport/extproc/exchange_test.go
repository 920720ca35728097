package extproc_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc"
	"github.com/endpick/endpick/transport/extproc/extproctest"
)

// engine answers with a hash of what it received, or with a stream.
func engine(t testing.TB) *httptest.Server {
	e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		body, err := io.ReadAll(in.Body)
		if err != nil {
			return
		}
		w.Header().Set("X-Length", fmt.Sprint(len(body)))
		w.Header().Set("X-Sum", fmt.Sprintf("%x", sha256.Sum256(body)))
		switch {
		case in.URL.Path == "/echo":
			w.Header().Set("Content-Type", "application/octet-stream")
			w.Write(body)
		case in.Header.Get("X-Trailers") != "":
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Trailer", "X-Sum-After")
			io.WriteString(w, events+usage+done)
			w.Header().Set("X-Sum-After", "1")
		default:
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, events+usage+done)
		}
	}))
	t.Cleanup(e.Close)
	return e
}

// endpoints returns those of servers; for nil, one at which nothing listens.
func endpoints(servers ...*httptest.Server) (all []endpick.Endpoint) {
	for i, s := range servers {
		e := endpick.Endpoint{ID: string(rune('a' + i)), Address: "127.0.0.1:1"}
		if s != nil {
			e.Address = s.URL
		}
		all = append(all, e)
	}
	return all
}

var modes = map[string]*extproctest.Proxy{
	"full duplex": {}, "buffered": {Buffered: true}, "full duplex, untold": {Silent: true}, "full duplex, long pieces": {Piece: 1 << 20},
}

func through(w *world, mode *extproctest.Proxy) *extproctest.Proxy {
	return &extproctest.Proxy{Picker: w.conn, Buffered: mode.Buffered, Silent: mode.Silent, Piece: mode.Piece}
}

func do(t testing.TB, p http.RoundTripper, path string, body []byte, header ...string) (*http.Response, []byte) {
	t.Helper()
	in, err := http.NewRequestWithContext(t.Context(), "POST", "http://gateway"+path, bytes.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		in.Header.Set(header[i], header[i+1])
	}
	response, err := p.RoundTrip(in)
	require.NoError(t, err)
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response, got
}

// Bodies of every size arrive unchanged, in both directions.
func TestBodies(t *testing.T) {
	e := engine(t)
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, extproc.Config{}, endpoints(e)...)
			p := through(w, mode)
			most := 20 << 20
			if mode.Silent || mode.Piece > 0 {
				most = 1 << 20
			}
			for _, size := range []int{0, 1, extproctest.MaxPiece - 1, extproctest.MaxPiece, extproctest.MaxPiece + 1, 2 * extproctest.MaxPiece, most} {
				body := bytes.Repeat([]byte{'x', 0, 0xff, '\n'}, size/4+1)[:size]
				response, got := do(t, p, "/echo", body)
				assert.Equal(t, 200, response.StatusCode)
				assert.Equal(t, fmt.Sprint(size), response.Header.Get("X-Length"))
				assert.Equal(t, fmt.Sprintf("%x", sha256.Sum256(body)), response.Header.Get("X-Sum"))
				assert.True(t, bytes.Equal(body, got), "%d bytes", size)
			}
			// A long prompt whose stream must be asked for usage.
			long := `{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("all work and no play ", most/21) + `"}]}`
			response, got := do(t, p, chatPath, []byte(long))
			want := `{"stream_options":{"include_usage":true},` + long[1:]
			assert.Equal(t, fmt.Sprintf("%x", sha256.Sum256([]byte(want))), response.Header.Get("X-Sum"))
			assert.Equal(t, events+done, string(got))
			w.idle(t)
			assert.NotContains(t, w.heard.said(), "failed")
			assert.Empty(t, w.warnings())
		})
	}
}

func TestBodiesThatAreTooLong(t *testing.T) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, extproc.Config{Dispatcher: transport.Config{MaxBodyBytes: 100_000}}, endpoints(engine(t))...)
			response, got := do(t, through(w, mode), chatPath, make([]byte, 200_000))
			assert.Equal(t, 413, response.StatusCode)
			assert.Contains(t, string(got), "longer than 100000 bytes")
			response, _ = do(t, through(w, mode), "/echo", make([]byte, 100_000))
			assert.Equal(t, 200, response.StatusCode)
			w.idle(t)
		})
	}
}

func TestTrailersPass(t *testing.T) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, extproc.Config{}, endpoints(engine(t))...)
			in, err := http.NewRequestWithContext(t.Context(), "POST", "http://gateway"+chatPath, strings.NewReader(chatBody))
			require.NoError(t, err)
			in.Trailer = http.Header{"X-Checksum": {"1"}}
			in.Header.Set("X-Trailers", "1")
			response, err := through(w, mode).RoundTrip(in)
			require.NoError(t, err)
			got, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			assert.Equal(t, events+done, string(got))
			response.Body.Close()
			w.idle(t)
			assert.Equal(t, "a completed", w.heard.said())
		})
	}
}

// The proxy goes down the list, and the picker learns who has served the request.
func TestFallingBack(t *testing.T) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, extproc.Config{Dispatcher: transport.Config{Fallbacks: 2}}, endpoints(nil, engine(t))...)
			for range 4 { // avoided after the third failure
				response, _ := do(t, through(w, mode), chatPath, []byte(chatBody))
				assert.Equal(t, 200, response.StatusCode)
				w.idle(t)
			}
			assert.Equal(t, "a failed, b completed, a failed, b completed, a failed, b completed, b completed", w.heard.said())
			require.NoError(t, w.router.Remove("b"))
			response, got := do(t, through(w, mode), chatPath, []byte(chatBody))
			assert.Equal(t, 503, response.StatusCode, "the proxy's own")
			assert.Equal(t, "upstream connect error", string(got))
			w.idle(t)
		})
	}
}

// A client or the proxy may disappear after any message.
func TestVanishing(t *testing.T) {
	script := []*extprocv3.ProcessingRequest{
		requestHeaders(false), requestBody(chatBody[:10], false), requestBody(chatBody[10:], true),
		responseHeaders("200", false), responseBody(events[:20], false), responseBody(events[20:], false), responseBody(usage, false), responseBody(done, true),
	}
	want := map[int]string{0: "", 1: "", 2: "", 3: "a canceled", 4: "a canceled", 5: "a canceled", 6: "a canceled", 7: "a canceled", 8: "a completed"}
	for n := range len(script) + 1 {
		for name, leave := range map[string]func(*talk){
			"reset":       func(c *talk) { c.cancel() },
			"half closed": func(c *talk) { c.stream.CloseSend() },
			"unread":      func(c *talk) { c.stream.CloseSend(); c.cancel() },
		} {
			t.Run(fmt.Sprintf("after %d/%s", n, name), func(t *testing.T) {
				w := newWorld(t, extproc.Config{})
				c := w.talk(t, inPieces)
				for _, m := range script[:n] {
					c.send(m)
				}
				if n >= 3 { // a reset may overtake what was sent
					for range min(n-1, 3) {
						c.recv()
					}
				}
				if n == len(script) {
					for !c.recv().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetEndOfStream() {
					}
				}
				leave(c)
				w.idle(t)
				if n >= 3 {
					require.Eventually(t, func() bool { return w.heard.said() != "" }, 30*time.Second, time.Millisecond)
				}
				assert.Equal(t, want[n], w.heard.said())
			})
		}
	}
}

// A thousand concurrent streams, most of which go wrong in some way, leave nothing behind.
func TestAThousandStreams(t *testing.T) {
	e := engine(t)
	before := runtime.NumGoroutine()
	t.Run("streams", func(t *testing.T) {
		w := newWorld(t, extproc.Config{Dispatcher: transport.Config{Fallbacks: 2}}, endpoints(e, nil)...)
		base := &http.Transport{MaxIdleConnsPerHost: 64, MaxConnsPerHost: 64}
		defer base.CloseIdleConnections()
		var all sync.WaitGroup
		for i := range 1000 {
			all.Add(1)
			go func() {
				defer all.Done()
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				p := &extproctest.Proxy{Picker: w.conn, Buffered: i%3 == 0, Base: base}
				in, _ := http.NewRequestWithContext(ctx, "POST", "http://gateway"+chatPath, strings.NewReader(chatBody))
				switch i % 5 {
				case 0: // canceled at some time
					go func() { time.Sleep(time.Duration(i%50) * time.Millisecond); cancel() }()
				case 1: // is never finished
					stream, err := extprocv3.NewExternalProcessorClient(w.conn).Process(ctx)
					if err == nil {
						stream.Send(requestHeaders(false))
						stream.Send(requestBody(chatBody, true))
						stream.Recv()
					}
					return
				}
				response, err := p.RoundTrip(in)
				if err == nil {
					if i%5 != 2 { // leaves without reading
						io.Copy(io.Discard, response.Body)
					}
					response.Body.Close()
				}
			}()
		}
		all.Wait()
		w.idle(t)
		assert.EqualValues(t, w.router.Stats().Routed, w.router.Stats().Closed)
	})
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+2 }, 30*time.Second, 10*time.Millisecond, "goroutines stay")
}

// A thousand streams are open at once, each with its lease, and end in six ways: each
// lease and each goroutine ends with its stream.
func TestAThousandStreamsAtOnce(t *testing.T) {
	const n = 1000
	before := runtime.NumGoroutine()
	t.Run("streams", func(t *testing.T) {
		w := newWorld(t, extproc.Config{Dispatcher: transport.Config{Fallbacks: 2}})
		talks := make([]*talk, n)
		for i := range talks {
			mode := inPieces
			if i%2 == 1 {
				mode = atOnce
			}
			talks[i] = w.talk(t, mode)
			header, _ := destination(first(talks[i].request(chatBody)))
			require.NotEmpty(t, header)
		}
		assert.Equal(t, n, w.router.Stats().OpenLeases)
		for i, c := range talks {
			if i%6 >= 3 {
				c.send(responseHeaders(map[bool]string{true: "500", false: "200"}[i%6 == 3], false))
				c.recv()
			}
			switch i % 6 {
			case 0, 3: // disappears silently
				c.cancel()
			case 1, 4:
				require.NoError(t, c.stream.CloseSend())
			case 2: // violates the protocol
				c.send(&extprocv3.ProcessingRequest{})
			case 5:
				assert.Equal(t, events+done, c.response(events+usage+done))
				c.ends()
			}
		}
		w.idle(t)
		assert.EqualValues(t, n, w.router.Stats().Closed)
		assert.Zero(t, w.router.Stats().Reaped)
	})
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+2 }, 30*time.Second, 10*time.Millisecond, "goroutines stay")
}
