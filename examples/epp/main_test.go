package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport/extproc/extproctest"
)

var duration = flag.Duration("duration", 500*time.Millisecond, "how long conversations start in TestPicker, each time")

// Behind a picker all requests are served, as many prompts are in the caches as with package
// transport in its place, and no lease stays open. With the flag, go test -v prints a comparison
// that takes a minute:
//
//	go test -v -run TestPicker ./examples/epp -duration 15s
func TestPicker(t *testing.T) {
	for _, buffered := range []bool{false, true} {
		picker := func(policy string) traffic.Opener { return throughPicker(policy, buffered) }
		_, hits, text, err := traffic.Contest(t.Context(), traffic.ContestWorkload(*duration), []traffic.Way{
			{Name: "picker, round-robin", Open: picker("round-robin")},
			{Name: "picker, marginal-delay", Open: picker("marginal-delay")},
			{Name: "transport, marginal-delay", Open: traffic.Direct("marginal-delay")},
		}, picker(traffic.OneByOne), traffic.Direct(traffic.OneByOne))
		require.NoError(t, err)
		t.Logf("bodies buffered: %v\n%s", buffered, text)
		assert.InDelta(t, hits[1], hits[0], 0.01)
	}
}

// throughPicker is a proxy that plays Envoy's side of a picker's protocol. If buffered, it sends
// whole bodies.
func throughPicker(policy string, buffered bool) traffic.Opener {
	return func(fleet *traffic.Fleet) (*traffic.Front, error) {
		config, err := all.ByName(policy)
		if err != nil {
			return nil, err
		}
		config.Endpoints, config.Seed = fleet.Endpoints(), 1
		var warned atomic.Pointer[error]
		picker, router, err := newPicker(config, func(err error) { warned.CompareAndSwap(nil, &err) })
		if err != nil {
			return nil, err
		}
		certificate, err := selfSigned()
		if err != nil {
			return nil, err
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		ctx, drain := context.WithCancel(context.Background())
		served := make(chan error, 1)
		go func() {
			served <- picker.Serve(ctx, l, grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{certificate}})))
		}()
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
		if err != nil {
			drain()
			return nil, errors.Join(err, <-served)
		}
		base := &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true}
		proxy := &httputil.ReverseProxy{
			Rewrite:   func(*httputil.ProxyRequest) {}, // the picker names the target
			Transport: &extproctest.Proxy{Picker: conn, Buffered: buffered, Base: base}, FlushInterval: -1,
			ErrorLog: log.New(io.Discard, "", 0), // a protocol violation fails its request
		}
		return traffic.Serve(proxy, router, func() error {
			conn.Close()
			base.CloseIdleConnections()
			drain()
			err := <-served
			if w := warned.Load(); w != nil {
				err = errors.Join(err, fmt.Errorf("the picker has warned: %w", *w))
			}
			return err
		})
	}
}

func TestArguments(t *testing.T) {
	for _, args := range [][]string{{"x"}, {}, {"-dns", "a:1", "-endpoints", "f"}, {"-endpoints", "f", "-policy", "best"}, {"-dns", "models"}, {"-dns", "models:http"}} {
		var stderr bytes.Buffer
		assert.Equal(t, 2, run(t.Context(), args, &stderr), "%v", args)
		assert.NotEmpty(t, stderr.String())
	}
	assert.Zero(t, run(t.Context(), []string{"-help"}, new(bytes.Buffer)))
	assert.Equal(t, 1, run(t.Context(), []string{"-listen", "nowhere", "-endpoints", "f"}, new(bytes.Buffer)))
}

// A running picker is asked for its health, over TLS: it is ready once it has read its file.
func TestServe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "servers.txt")
	require.NoError(t, os.WriteFile(file, []byte("# two\n10.0.0.1:8000\n10.0.0.2:8000\n\n"), 0o600))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	o, err := parse([]string{"-listen", "127.0.0.1:0", "-endpoints", file}, new(bytes.Buffer))
	require.NoError(t, err)
	at := make(chan net.Addr, 1)
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, o, new(bytes.Buffer), func(a net.Addr) { at <- a }) }()
	conn, err := grpc.NewClient((<-at).String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
	require.NoError(t, err)
	defer conn.Close()
	ready := func() healthv1.HealthCheckResponse_ServingStatus {
		answer, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: "readiness"})
		require.NoError(t, err)
		return answer.GetStatus()
	}
	require.Eventually(t, func() bool { return ready() == healthv1.HealthCheckResponse_SERVING }, 30*time.Second, 10*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
}
