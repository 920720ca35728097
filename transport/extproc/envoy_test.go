package extproc_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/envoy"
	"github.com/endpick/endpick/transport/extproc"
)

const documented = "../../examples/epp/envoy.yaml"

// modes are edits of that: the ways in which gateways send bodies.
var modes = map[string][]string{
	"as documented": nil,
	"full duplex":   {"request_body_mode: BUFFERED", "request_body_mode: FULL_DUPLEX_STREAMED"},
	"buffered":      {"response_body_mode: FULL_DUPLEX_STREAMED", "response_body_mode: BUFFERED"},
}

// patient is an edit for machines that are busy.
var patient = []string{"message_timeout: 5s", "message_timeout: 60s"}

func secured() grpc.ServerOption { return grpc.Creds(credentials.NewTLS(envoy.TLS())) }

func serversOf(router *endpick.Router) (all []string) {
	for _, e := range router.Endpoints() {
		all = append(all, strings.TrimPrefix(e.Candidate.Endpoint.Address, "http://"))
	}
	return all
}

// behind is a world behind an Envoy, and that Envoy's URL.
func behind(t testing.TB, config extproc.Config, edits []string, servers ...*httptest.Server) (*world, string) {
	config.Dispatcher.Fallbacks = 2
	w := newWorld(t, config, endpoints(servers...)...)
	at, _, _ := listen(t, w.server, "127.0.0.1:0", secured())
	return w, envoy.Start(t, documented, at, serversOf(w.router), append(patient, edits...)...)
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

// engine answers with a hash of what it received, and with that, or a stream.
func engine(t testing.TB) *httptest.Server {
	return server(t, func(w http.ResponseWriter, in *http.Request) {
		body, err := io.ReadAll(in.Body)
		if err != nil {
			return
		}
		w.Header().Set("X-Sum", fmt.Sprintf("%d %x", len(body), sha256.Sum256(body)))
		if in.URL.Path == "/echo" {
			w.Header().Set("Content-Type", "application/octet-stream")
			w.Write(body)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Trailer", "X-After")
		io.WriteString(w, events+usage+done)
		w.Header().Set("X-After", "1")
	})
}

func server(t testing.TB, handler http.HandlerFunc) *httptest.Server {
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s
}

// h2 is a client of HTTP/2 in the clear, which has trailers.
func h2(t testing.TB) *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	base := &http.Transport{Protocols: p}
	t.Cleanup(base.CloseIdleConnections)
	return &http.Client{Transport: base}
}

func do(t testing.TB, client *http.Client, method, url string, body []byte, header ...string) (*http.Response, string) {
	t.Helper()
	in, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		in.Header.Set(header[i], header[i+1])
	}
	if header == nil && len(body) > 0 {
		in.Trailer = http.Header{"X-Checksum": {"1"}}
		in.ContentLength = -1
	}
	response, err := client.Do(in)
	require.NoError(t, err)
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response, string(got)
}
