package transport_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
)

const (
	role      = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	finish    = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	brokenOff = `data: {"error":{"message":"the model server failed before the end of its answer","type":"api_error","param":null,"code":"502"}}` + "\n\n"
	done      = "data: [DONE]\n\n"
)

func delta(fields string) string {
	return `data: {"choices":[{"index":0,"delta":{` + fields + `}}]}` + "\n\n"
}

func finalUsage(prompt, completion int) string {
	return fmt.Sprintf(`data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`+"\n\n", prompt, completion)
}

// A body may come byte by byte, and its last bytes together with the error.
func TestBodiesComeInAnyPieces(t *testing.T) {
	stream := role + delta(`"content":"Once"`) + finish + finalUsage(7, 5) + done
	object := `{"choices":[{"message":{"content":"Once"}}],"usage":{"prompt_tokens":7,"completion_tokens":5}}`
	pieces := map[string]func(io.Reader) io.Reader{
		"whole":                   func(r io.Reader) io.Reader { return r },
		"byte by byte":            iotest.OneByteReader,
		"half by half":            iotest.HalfReader,
		"data with the error":     iotest.DataErrReader,
		"bytes, the last with it": func(r io.Reader) io.Reader { return iotest.DataErrReader(iotest.OneByteReader(r)) },
		"nothing, then a byte": func(r io.Reader) io.Reader {
			r, calls := iotest.OneByteReader(r), 0
			return reads(func(p []byte) (int, error) {
				if calls++; calls%2 == 1 {
					return 0, nil
				}
				return r.Read(p)
			})
		},
	}
	for name, in := range pieces {
		for _, tc := range []struct {
			request, kind, body, passed string
			breaks                      error
		}{
			{chatStream, "text/event-stream", stream, role + delta(`"content":"Once"`) + finish + done, nil},
			{chatStream, "text/event-stream", stream[:len(stream)-40], role + delta(`"content":"Once"`) + finish + brokenOff, io.ErrUnexpectedEOF},
			{chatStream, "Text/Event-Stream; charset=utf-8, text/event-stream", stream, role + delta(`"content":"Once"`) + finish + done, nil},
			{chatStream, "application/json", stream, role + delta(`"content":"Once"`) + finish + done, nil},
			{chatStream, "text/plain", ": ping\n\n" + stream, ": ping\n\n" + role + delta(`"content":"Once"`) + finish + done, nil},
			{chatAtOnce, "application/json", object, object, nil},
			{chatAtOnce, "application/json", object[:len(object)-1], "", io.ErrUnexpectedEOF},
		} {
			t.Run(name, func(t *testing.T) {
				body := io.Reader(strings.NewReader(tc.body))
				if tc.breaks != nil {
					body = io.MultiReader(body, iotest.ErrReader(tc.breaks))
				}
				w := newWorld(t, transport.Config{Base: tripper(func(*http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {tc.kind}}, Body: io.NopCloser(in(body))}, nil
				})}, "x:1")
				_, got, err := w.do(t, post(t, chatPath, tc.request))
				assert.Equal(t, tc.passed, got)
				require.ErrorIs(t, err, tc.breaks)
				out := w.outcome(t)
				if tc.breaks == nil {
					assert.Equal(t, endpick.Outcome{InputTokens: 7, OutputTokens: 5}, out)
				} else {
					assert.Equal(t, endpick.Failed, out.Status)
					assert.ErrorContains(t, err, `transport: endpoint "a" (attempt 1): unexpected EOF`)
				}
				w.idle(t)
			})
		}
	}
}

// Tokens are counted as they arrive, and the first one ends the prefill.
func TestTokensAreCountedAsTheyCome(t *testing.T) {
	step := make(chan string)
	e := startEngine(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.Header().Set("Content-Type", "text/event-stream")
		for s := range step {
			io.WriteString(w, s)
			w.(http.Flusher).Flush()
		}
		return true
	})
	w := newWorld(t, transport.Config{}, e.URL)
	got := make(chan reply)
	go func() {
		resp, err := w.client.Do(post(t, chatPath, chatStream))
		got <- reply{resp, err}
	}()
	step <- role // which says nothing
	inFlight := func() endpick.InFlight { return w.router.Endpoints()[0].Candidate.InFlight }
	assert.Equal(t, 1, inFlight().Prefilling)
	assert.Positive(t, inFlight().PrefillTokens)
	long := delta(`"content":"` + strings.Repeat("x", 400) + `"`)
	step <- long
	r := <-got
	require.NoError(t, r.err)
	defer r.resp.Body.Close()
	read := func(want string) {
		b := make([]byte, len(want))
		_, err := io.ReadFull(r.resp.Body, b)
		require.NoError(t, err)
		require.Equal(t, want, string(b))
	}
	read(role)
	for i := 1; i <= 3; i++ {
		if i > 1 {
			step <- long
		}
		read(long)
		assert.Equal(t, 100*i, inFlight().OutputTokens)
		assert.Zero(t, inFlight().Prefilling)
		assert.Zero(t, inFlight().PrefillTokens)
	}
	step <- done
	close(step)
	_, err := io.ReadAll(r.resp.Body)
	require.NoError(t, err)
	w.idle(t)
}

// A client has a response without a body as soon as it has the header, and may be gone
// before its gateway reads further: so the response completes before it is handed
// over.
func TestClientThatStopsAtTheHeaderHasAll(t *testing.T) {
	for name, tc := range map[string]struct {
		method, path string
		answer       string
	}{
		"HEAD":                 {"HEAD", "/health", "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"},
		"HEAD, packed":         {"HEAD", chatPath, "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"},
		"of no length":         {"GET", "/health", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		"no content":           {"POST", chatPath, "HTTP/1.1 204 No Content\r\n\r\n"},
		"not modified":         {"GET", "/health", "HTTP/1.1 304 Not Modified\r\n\r\n"},
		"of no length, packed": {"POST", chatPath, "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n"},
	} {
		for leaves, leave := range map[string]func(cancel func(), body io.Closer){
			"cancels": func(cancel func(), _ io.Closer) { cancel() },
			"closes":  func(_ func(), body io.Closer) { body.Close() },
		} {
			t.Run(name+"/"+leaves, func(t *testing.T) {
				w := newWorld(t, transport.Config{}, startRaw(t, tc.answer))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				in := rig.Must(http.NewRequestWithContext(ctx, tc.method, "http://gateway"+tc.path, http.NoBody))
				if tc.method == "POST" {
					in = post(t, tc.path, chatAtOnce).WithContext(ctx)
				}
				resp, err := w.t.RoundTrip(in)
				require.NoError(t, err)
				leave(cancel, resp.Body)
				assert.Equal(t, endpick.Completed, w.outcome(t).Status)
				assert.Equal(t, "completed", w.record(t).Status)
				w.idle(t)
				resp.Body.Close()
			})
		}
	}
}

func TestCompressedResponses(t *testing.T) {
	for name, open := range map[string]func(io.Writer) io.WriteCloser{
		"gzip":        func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
		"deflate":     func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) },
		"raw deflate": func(w io.Writer) io.WriteCloser { return rig.Must(flate.NewWriter(w, flate.DefaultCompression)) },
	} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s stream=%v", name, stream), func(t *testing.T) {
				var accepts string
				e := startEngine(t, func(w http.ResponseWriter, r *http.Request, body []byte) bool {
					accepts = r.Header.Get("Accept-Encoding")
					w.Header().Set("Content-Encoding", strings.TrimPrefix(name, "raw "))
					var b bytes.Buffer
					z := open(&b)
					answer(&compressedWriter{ResponseWriter: w, z: z, b: &b}, body, 0)
					z.Close()
					w.Write(b.Bytes())
					return true
				})
				w := newWorld(t, transport.Config{}, e.URL)
				req := chatAtOnce
				if stream {
					req = chatStream
				}
				resp, body := w.ok(t, post(t, chatPath, req, "Accept-Encoding", "gzip, br"))
				assert.Equal(t, "identity", accepts)
				assert.Empty(t, resp.Header.Get("Content-Encoding"))
				assert.EqualValues(t, -1, resp.ContentLength)
				assert.Contains(t, body, "upon")
				assert.Equal(t, endpick.Outcome{InputTokens: 100, OutputTokens: 4, CachedTokens: 64, HasCachedTokens: true}, w.outcome(t))
			})
		}
	}
	t.Run("a coding that is not known passes as it is", func(t *testing.T) {
		e := startEngine(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			w.Header().Set("Content-Encoding", "br")
			return sse("\x01\x02\n\n\x03")(w, nil, nil)
		})
		w := newWorld(t, transport.Config{}, e.URL)
		resp, body := w.ok(t, post(t, chatPath, chatStream))
		assert.Equal(t, "br", resp.Header.Get("Content-Encoding"))
		assert.Equal(t, "\x01\x02\n\n\x03", body)
		assert.Equal(t, endpick.Outcome{}, w.outcome(t))
	})
	t.Run("what is no gzip is an error for the client", func(t *testing.T) {
		e := startEngine(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			w.Header().Set("Content-Encoding", "gzip")
			return sse("this is no gzip")(w, nil, nil)
		})
		w := newWorld(t, transport.Config{}, e.URL)
		_, _, err := w.do(t, post(t, chatPath, chatStream))
		assert.ErrorIs(t, err, gzip.ErrHeader)
		assert.Equal(t, endpick.Failed, w.outcome(t).Status)
		w.idle(t)
	})
}

// compressedWriter compresses each flush, as a server does.
type compressedWriter struct {
	http.ResponseWriter
	z io.WriteCloser
	b *bytes.Buffer
}

func (c *compressedWriter) Write(p []byte) (int, error) { return c.z.Write(p) }

func (c *compressedWriter) Flush() {
	c.z.(interface{ Flush() error }).Flush()
	c.ResponseWriter.Write(c.b.Bytes())
	c.b.Reset()
	c.ResponseWriter.(http.Flusher).Flush()
}

func TestCompressedEventsAreNotHeldUp(t *testing.T) {
	more := make(chan struct{})
	e := startEngine(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Content-Encoding", "gzip")
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		c := &compressedWriter{ResponseWriter: w, z: z, b: &b}
		io.WriteString(c, role)
		c.Flush()
		<-more
		io.WriteString(c, finish)
		z.Close()
		w.Write(b.Bytes())
		return true
	})
	w := newWorld(t, transport.Config{}, e.URL)
	resp, err := w.client.Do(post(t, chatPath, chatStream))
	require.NoError(t, err)
	defer resp.Body.Close()
	got := make([]byte, len(role))
	_, err = io.ReadFull(resp.Body, got)
	require.NoError(t, err)
	assert.Equal(t, role, string(got))
	close(more)
	rest, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Equal(t, finish, string(rest))
}

// A WebSocket goes to a server that has the model in its URL.
func TestUpgradesGoToTheirModel(t *testing.T) {
	w := newWorld(t, transport.Config{EnableEndpointHeader: true})
	for _, model := range []string{"m", "n", "o"} {
		w.add(t, model, startEngine(t, upgrades(echo)).URL, model)
	}
	for _, model := range []string{"m", "n", "o", "m", "n", "p"} {
		resp, err := w.t.RoundTrip(upgrade(t, model))
		if model == "p" {
			require.Equal(t, 404, transport.StatusOf(err))
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, 101, resp.StatusCode)
		assert.Equal(t, model, resp.Header.Get(transport.EndpointHeader))
		resp.Body.Close()
	}
	w.idle(t)
}

func TestStreamsOverHTTP2(t *testing.T) {
	gone := make(chan struct{}, 1)
	address, open := startH2C(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("X-Mood") == "" {
			answer(w, body, 0)
			return
		}
		hangs(role+delta(`"content":"a"`))(w, r, nil)
		gone <- struct{}{}
	}))
	w := newWorld(t, transport.Config{}, address)
	resp, body := w.ok(t, post(t, chatPath, chatStream))
	assert.Equal(t, 2, resp.ProtoMajor)
	assert.Contains(t, body, "upon")
	assert.Equal(t, 4, w.outcome(t).OutputTokens)

	resp, err := w.client.Do(post(t, chatPath, chatStream, "X-Mood", "slow"))
	require.NoError(t, err)
	assert.EqualValues(t, 1, w.router.Stats().OpenLeases)
	resp.Body.Close()
	<-gone

	// A request that must not be sent twice gets a new connection of the same kind.
	resp, _ = w.ok(t, post(t, "/v1/other", "{}"))
	assert.Equal(t, 2, resp.ProtoMajor)
	w.idle(t)
	require.Eventually(t, func() bool { return open.Load() == 1 }, 30*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { // a connection is idle a little after its last response has ended
		w.t.CloseIdleConnections()
		return open.Load() == 0
	}, 30*time.Second, time.Millisecond)
}
