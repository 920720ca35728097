package extproc_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/envoy"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc"
)

// secure is a certificate that nobody has signed, as gateways expect of a picker.
func secure() grpc.ServerOption {
	certified := httptest.NewUnstartedServer(nil)
	certified.StartTLS()
	defer certified.Close()
	return grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: certified.TLS.Certificates}))
}

// pickerAt serves a picker as Envoys expect it, and returns its address.
func pickerAt(t testing.TB, server *extproc.Server) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l, secure()) }()
	t.Cleanup(func() { stop(); assert.NoError(t, <-ended) })
	return l.Addr().String()
}

// behind is a world behind the documented Envoy, with servers, and its URL.
func behind(t testing.TB, config extproc.Config, engines []*httptest.Server, edits ...string) (*world, string) {
	if config.Dispatcher.Fallbacks == 0 {
		config.Dispatcher.Fallbacks = 2
	}
	all := endpoints(engines...)
	w := newWorld(t, config, all...)
	return w, envoy.Start(t, "../../examples/epp/envoy.yaml", pickerAt(t, w.server), addresses(all), edits...)
}

func addresses(all []endpick.Endpoint) (at []string) {
	for _, e := range all {
		at = append(at, strings.TrimPrefix(e.Address, "http://"))
	}
	return at
}

// answering is an engine with one answer, and how often it was asked.
func answering(t testing.TB, status int, body string) (*httptest.Server, *atomic.Int32) {
	asked := new(atomic.Int32)
	e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		io.Copy(io.Discard, in.Body)
		asked.Add(1)
		w.WriteHeader(status)
		io.WriteString(w, body)
	}))
	t.Cleanup(e.Close)
	return e, asked
}

func post(t testing.TB, url string, body []byte, header ...string) (*http.Response, string) {
	t.Helper()
	in, err := http.NewRequestWithContext(t.Context(), "POST", url, bytes.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		in.Header.Set(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(in)
	require.NoError(t, err)
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response, string(got)
}

func TestEnvoyAsksTheNext(t *testing.T) {
	for status, want := range map[int]string{429: "b", 502: "b", 503: "b", 500: "a"} {
		first, one := answering(t, status, "a")
		second, two := answering(t, 200, "b")
		w, url := behind(t, extproc.Config{}, []*httptest.Server{first, second})
		_, got := post(t, url+chatPath, []byte(chatBody))
		assert.Equal(t, want, got, status)
		assert.EqualValues(t, 1, one.Load())
		_, got = post(t, url+"/v1/files", []byte("x"))
		assert.Equal(t, "a", got)
		assert.EqualValues(t, 2, one.Load(), status)
		_ = two
		w.idle(t)
		t.Log(w.heard.said())
	}
	_ = transport.Config{}
}
