package transport_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
)

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(in *http.Request) (*http.Response, error) { return f(in) }

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
	router, err := endpick.New(config)
	require.NoError(f, err)
	var panicked atomic.Pointer[error]
	type answer struct {
		status int
		header http.Header
		body   string
		breaks bool
	}
	var next atomic.Pointer[answer]
	rt, err := transport.New(transport.Config{
		Router: router, MaxBodyBytes: 1 << 16,
		Base: tripper(func(in *http.Request) (*http.Response, error) {
			if in.Body != nil {
				_, _ = io.Copy(io.Discard, in.Body)
				in.Body.Close()
			}
			a := next.Load()
			body := io.Reader(strings.NewReader(a.body))
			if a.breaks {
				body = io.MultiReader(body, brokenReader{})
			}
			return &http.Response{
				StatusCode: a.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: a.header.Clone(), Body: io.NopCloser(body), ContentLength: -1, Request: in,
			}, nil
		}),
		Warn: func(_ *http.Request, err error) {
			if p := (*endpick.PanicError)(nil); errors.As(err, &p) {
				panicked.Store(&err)
			}
		},
	})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, path, sent, body string, status uint16, received, answered string, breaks bool) {
		if len(body)+len(answered) > 1<<17 || len(path) > 1<<12 {
			return
		}
		next.Store(&answer{200 + (int(status)+200)%400, headerOf(received), answered, breaks})
		in, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://gateway/", strings.NewReader(body))
		require.NoError(t, err)
		if in.URL, err = in.URL.Parse("/" + strings.TrimLeft(path, "/")); err != nil || in.URL.Host != "gateway" {
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
		if p := panicked.Load(); p != nil {
			t.Fatal(*p)
		}
		// An abandoned exchange is closed by a goroutine of its own.
		for deadline := time.Now().Add(30 * time.Second); router.Stats().OpenLeases > 0; time.Sleep(time.Millisecond) {
			require.True(t, time.Now().Before(deadline), "a lease is left open")
		}
		for _, e := range router.Endpoints() {
			require.Zero(t, e.Candidate.InFlight)
		}
	})
}

// brokenReader is a broken connection.
type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
