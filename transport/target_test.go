package transport_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/transport"
)

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
}
