package suite

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The standard library's proxy causes exactly the documented differences and leaves
// nothing behind. The other ways are compared in internal/lab/conformance.
func TestReverseProxy(t *testing.T) {
	require.NoError(t, rig.Must(Compare(t.Context(), []Way{ReverseProxy()}, Scenarios(), io.Discard)).Err())
}

// Two direct runs are equal: the behaviour of servers and client does not depend on chance.
func TestDirectIsDirect(t *testing.T) {
	for _, s := range Scenarios() {
		one, err := Play(t.Context(), Direct(), s)
		require.NoError(t, err, s.Name)
		two, err := Play(t.Context(), Direct(), s)
		require.NoError(t, err, s.Name)
		assert.Empty(t, one.Differences(two), s.Name)
		assert.Empty(t, one.Late, s.Name)
	}
}

func TestScenariosAreThere(t *testing.T) {
	names := map[string]bool{}
	for _, s := range Scenarios() {
		assert.False(t, names[s.Name], "%s: twice", s.Name)
		assert.NotEmpty(t, s.Replies, s.Name)
		names[s.Name] = true
	}
	assert.Greater(t, len(names), 70)
	meanings := map[string]bool{}
	for _, m := range Meant() {
		assert.False(t, meanings[m.Name], "%s: twice", m.Name)
		assert.True(t, m.What != "" && m.Why != "", m.Name)
		meanings[m.Name] = true
		for _, s := range m.Scenarios {
			assert.True(t, names[s], "%s: no scenario %q", m.Name, s)
		}
	}
}

func scenarioOf(name string) Scenario {
	all := Scenarios()
	return all[slices.IndexFunc(all, func(s Scenario) bool { return s.Name == name })]
}

// fault is a way that does one thing wrong.
type fault struct {
	name, scenario string
	out            func(*http.Request)  // to the server
	back           func(*http.Response) // to the client
	want           string               // the fact that differs
	value          string               // its value with the fault
}

func header(name, value string) func(*http.Response) {
	return func(r *http.Response) { r.Header.Set(name, value) }
}

// edit rewrites the body of a response.
func edit(change func([]byte) []byte) func(*http.Response) {
	return func(r *http.Response) {
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		b = change(b)
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
		r.Header.Set("Content-Length", strconv.Itoa(len(b)))
	}
}

// forgetful loses the trailers of its response.
type forgetful struct {
	io.ReadCloser
	of *http.Response
}

func (f *forgetful) Read(p []byte) (int, error) {
	n, err := f.ReadCloser.Read(p)
	f.of.Trailer = nil
	return n, err
}

// Each possible fault is detected, and named correctly.
func TestFaultsAreNoticed(t *testing.T) {
	nothing := func(*http.Response) {}
	for _, f := range []fault{
		{"a header too many", "chat", nil, header("X-Endpick-Endpoint", "a"), "response header X-Endpick-Endpoint", "a"},
		{"a header lost", "error 429", nil, func(r *http.Response) { r.Header.Del("Retry-After") }, "response header Retry-After", Absent},
		{"a header joined", "headers", nil, func(r *http.Response) { r.Header["Set-Cookie"] = []string{"a=1, b=2"} }, "response header Set-Cookie", "a=1, b=2"},
		{"another status", "chat", nil, func(r *http.Response) { r.StatusCode = 203 }, "response status", "HTTP/1.1 203 Non-Authoritative Information"},
		{"another body", "embeddings", nil, edit(func(b []byte) []byte { return bytes.Replace(b, []byte("0.25"), []byte("0.50"), 1) }), "response body", ""},
		{"usage that nobody asked for", "chat, stream", func(r *http.Request) {
			r.Body = io.NopCloser(strings.NewReader(`{"include_usage":true}`))
			r.ContentLength = 22
		}, nothing, "response body", ""},
		{"a trailer lost", "trailers", nil, func(r *http.Response) { r.Body = &forgetful{r.Body, r} }, "response trailer X-Checksum", ""},
		{"another framing", "chat", nil, func(r *http.Response) { r.ContentLength = -1; r.Header.Del("Content-Length") }, "response framing", "chunked"},
		{"a request header lost", "headers", func(r *http.Request) { r.Header.Del("Traceparent") }, nothing, "request header Traceparent", Absent},
		{"a request header too many", "chat", func(r *http.Request) { r.Header.Set("X-Tenant", "t") }, nothing, "request header X-Tenant", "t"},
		{"another target", "chat", func(r *http.Request) { r.URL.RawQuery = "x=1" }, nothing, "request line", "POST /v1/chat/completions?x=1"},
		{"another method", "HEAD", func(r *http.Request) { r.Method = "GET" }, nothing, "request line", "GET /health"},
		{"a request body cut short", "chat", func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("{}")); r.ContentLength = 2 }, nothing, "request body", "{}"},
		{"a stream that is held back", "chat, stream", nil, edit(func(b []byte) []byte { return b }), "in vain", ""},
		{"a cut that is hidden", "cut in chunks", nil, edit(func(b []byte) []byte { return b }), "response end", "whole"},
	} {
		t.Run(f.name, func(t *testing.T) {
			way := faulty(f.out, f.back)
			if f.want == "in vain" {
				way.Patience = time.Second // and as long for what follows, however busy the machine is
			}
			s := scenarioOf(f.scenario)
			direct := rig.Must(Play(t.Context(), Direct(), s))
			differences := rig.Must(Play(t.Context(), way, s)).Differences(direct)
			i := slices.IndexFunc(differences, func(d Difference) bool { return d.What == f.want })
			require.GreaterOrEqual(t, i, 0, "%v", differences)
			if f.value != "" {
				assert.Equal(t, f.value, differences[i].Passed)
			}
			r := rig.Must(Compare(t.Context(), []Way{way}, []Scenario{s}, io.Discard))
			r.Unused = nil
			assert.ErrorContains(t, r.Err(), f.want)
			assert.Contains(t, r.Markdown(), "**differs**")
		})
	}
}

// faulty is a proxy to the first server.
func faulty(out func(*http.Request), back func(*http.Response)) Way {
	return Way{Name: "faulty", Open: func(servers []string) (*Front, error) {
		base := &http.Transport{DisableCompression: true}
		proxy := &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(&url.URL{Scheme: "http", Host: servers[0]})
				// A server that answers at once would end the body before it is sent whole.
				body, _ := io.ReadAll(r.In.Body)
				r.Out.Body = io.NopCloser(bytes.NewReader(body))
				if out != nil {
					out(r.Out)
				}
			},
			ModifyResponse: func(r *http.Response) error { back(r); return nil },
			Transport:      base,
		}
		return Serve(proxy, nil, func() error { base.CloseIdleConnections(); return nil })
	}}
}

// What remains of an exchange is reported.
func TestLeftoversAreNoticed(t *testing.T) {
	s := Scenarios()[:1]
	way := ReverseProxy()
	way.Patience = 50 * time.Millisecond
	open := way.Open
	after := func(do func(*Front)) {
		way.Open = func(servers []string) (*Front, error) {
			f, err := open(servers)
			if err == nil {
				do(f)
			}
			return f, err
		}
	}
	after(func(f *Front) { rig.Must(f.Router().Route(endpick.Request{Model: Model})) })
	_, err := Play(t.Context(), way, s[0])
	require.ErrorContains(t, err, "leases open: 1")
	require.ErrorIs(t, (&Report{Results: []Result{{Err: err}}}).Err(), err)

	stop := make(chan struct{})
	defer close(stop)
	after(func(*Front) {
		for range 100 {
			go func() { <-stop }()
		}
	})
	require.ErrorContains(t, rig.Must(Compare(t.Context(), []Way{way}, s, io.Discard)).Err(), "goroutines left")

	after(func(f *Front) {
		closing := f.Close
		f.Close = func() error { return errors.Join(closing(), errors.New("it can't be closed")) }
	})
	require.ErrorContains(t, rig.Err(Play(t.Context(), way, s[0])), "can't be closed")
}

// A retry on the same server, one retry too many, or a wrong document is reported.
func TestRetriesAndStaleDocumentsAreNoticed(t *testing.T) {
	s := scenarioOf("error 503")
	stubborn := Way{Name: reverseProxy, Open: func(servers []string) (*Front, error) {
		base := &http.Transport{}
		proxy := &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: servers[0]}) },
			Transport: rig.RoundTrip(func(in *http.Request) (*http.Response, error) {
				body, _ := io.ReadAll(in.Body)
				for again := true; ; again = false {
					in = in.Clone(context.WithoutCancel(in.Context()))
					in.Body = io.NopCloser(bytes.NewReader(body))
					r, err := base.RoundTrip(in)
					if err != nil || !again {
						return r, err
					}
					r.Body.Close()
				}
			}),
		}
		return Serve(proxy, nil, func() error { base.CloseIdleConnections(); return nil })
	}}
	r := rig.Must(Compare(t.Context(), []Way{stubborn}, []Scenario{s}, io.Discard))
	require.ErrorContains(t, r.Err(), `requests: "2 to 1 servers"`)
	require.ErrorContains(t, r.Err(), `nothing differs in the way that "usage asked for" documents`)
}
