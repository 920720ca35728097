package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/envoy"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/discover"
	"github.com/endpick/endpick/transport/extproc"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

var duration = flag.Duration("duration", 500*time.Millisecond, "how long conversations start in TestPicker, each time")

// Behind an Envoy and a picker all requests are served, as many prompts are in the caches as with
// package transport in their place, and no lease stays open. With the flag, go test -v prints a
// comparison that takes a minute:
//
//	go test -v -run TestPicker ./examples/epp -duration 15s
func TestPicker(t *testing.T) {
	picker := func(policy string) traffic.Opener {
		return func(fleet *traffic.Fleet) (*traffic.Front, error) { return openEnvoy(t, fleet, policy), nil }
	}
	_, hits, text, err := traffic.Contest(t.Context(), traffic.ContestWorkload(*duration), []traffic.Way{
		{Name: "picker, round-robin", Open: picker("round-robin")},
		{Name: "picker, marginal-delay", Open: picker("marginal-delay")},
		{Name: "transport, marginal-delay", Open: traffic.Direct("marginal-delay")},
	}, picker(traffic.OneByOne), traffic.Direct(traffic.OneByOne))
	require.NoError(t, err)
	t.Log("\n" + text)
	assert.InDelta(t, hits[1], hits[0], 0.01)
}

// openEnvoy is an Envoy with a picker before a fleet.
func openEnvoy(t *testing.T, fleet *traffic.Fleet, policy string) *traffic.Front {
	config := rig.Must(all.ByName(policy))
	config.Endpoints, config.Seed = fleet.Endpoints(), 1
	picker, router, _, err := newPicker(extproc.Config{}, config, func(err error) { t.Errorf("the picker has warned: %v", err) })
	require.NoError(t, err)
	l := rig.Must(net.Listen("tcp", "127.0.0.1:0"))
	var servers []string
	for _, m := range fleet.Members {
		servers = append(servers, m.Address)
	}
	url := envoy.Start(t, "envoy.yaml", l.Addr().String(), servers)
	ctx, drain := context.WithCancel(context.Background())
	served := make(chan error, 1)
	creds := grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{rig.Must(selfSigned())}}))
	go func() { served <- picker.Serve(ctx, l, creds) }()
	return &traffic.Front{
		Client: traffic.NewClient(url), Leases: func() int { return router.Stats().OpenLeases },
		Stop: func() error { drain(); return <-served },
	}
}

func TestArguments(t *testing.T) {
	for _, args := range [][]string{{"x"}, {}, {"-dns", "a:1", "-endpoints", "f"}, {"-endpoints", "f", "-policy", "best"}, {"-dns", "models"}, {"-dns", "models:http"}, {"-endpoints", "f", "-objective", "batch"}} {
		var stderr bytes.Buffer
		assert.Equal(t, 2, run(t.Context(), args, &stderr), "%v", args)
		assert.NotEmpty(t, stderr.String())
	}
	assert.Zero(t, run(t.Context(), []string{"-help"}, new(bytes.Buffer)))
	assert.Equal(t, 1, run(t.Context(), []string{"-listen", "nowhere", "-endpoints", "f"}, new(bytes.Buffer)))
}

func TestOptions(t *testing.T) {
	for args, want := range map[string]extproc.Config{
		"": {Dispatcher: transport.Config{Fallbacks: 2}, DrainTimeout: 30 * time.Second},
		"-fallbacks 0 -drain 1h -buffered -require-model -objective batch=-1 -objective chat=5": {DrainTimeout: time.Hour, Buffered: true, RequireModel: true, Objectives: map[string]int{"batch": -1, "chat": 5}},
	} {
		assert.Equal(t, want, rig.Must(parse(append(strings.Fields(args), "-endpoints", "f"), io.Discard)).picker)
	}
	assert.Equal(t, &discover.DNS{Name: "models", Port: 8000}, rig.Must(parse([]string{"-dns", "models:8000"}, io.Discard)).source)
}

func TestMetrics(t *testing.T) {
	broken := endpick.Weighted{Scorer: scorer.Cost("broken", func(*endpick.Request, *endpick.Candidate) float64 { panic("broken") }), Weight: 1}
	config := rig.Must(all.ByName("predicted-latency"))
	config.Endpoints, config.Policy.Scorers = []endpick.Endpoint{{Address: "10.0.0.1:80"}}, []endpick.Weighted{broken}
	var warned []error
	server, router, metrics, err := newPicker(extproc.Config{}, config, func(err error) { warned = append(warned, err) })
	require.NoError(t, err)
	rig.Must(router.Route(endpick.Request{})).Done(endpick.Outcome{})
	assert.Len(t, warned, 1)
	for range 20 { // what the picker learns of a server is what the page shows
		call := rig.Must(server.Dispatcher().Read(transport.Incoming{Method: http.MethodPost, Path: "/v1/completions", Body: []byte(`{"prompt":"x"}`)}))
		require.Error(t, rig.Must(call.Route(t.Context())).Fail(io.ErrUnexpectedEOF))
		call.Close()
	}
	var said bytes.Buffer
	stop := rig.Must(serveMetrics("127.0.0.1:0", metrics, log.New(&said, "", 0)))
	defer stop()
	response := rig.Must(http.Get("http://" + strings.TrimSpace(strings.TrimPrefix(said.String(), "metrics on ")) + "/metrics"))
	defer response.Body.Close()
	page := string(rig.Must(io.ReadAll(response.Body)))
	for _, want := range []string{"endpick_routed_total 21", "endpick_prediction_duration_seconds_count 21", `endpick_endpoint_share_ratio{endpoint="10.0.0.1:80"} 0`} {
		assert.Contains(t, page, want)
	}
}

// A running picker is asked for its health, over TLS: it is ready once it has read its file.
func TestServe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "servers.txt")
	require.NoError(t, os.WriteFile(file, []byte("gpu-1:8000\n"), 0o600))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	o := rig.Must(parse([]string{"-listen", "127.0.0.1:0", "-endpoints", file}, new(bytes.Buffer)))
	at, ended := make(chan net.Addr, 1), make(chan error, 1)
	var said rig.Output
	go func() { ended <- serve(ctx, o, &said, func(a net.Addr) { at <- a }) }()
	conn := rig.Must(grpc.NewClient((<-at).String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}))))
	defer conn.Close()
	ready := func() healthv1.HealthCheckResponse_ServingStatus {
		return rig.Must(healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: "readiness"})).GetStatus()
	}
	assert.Equal(t, healthv1.HealthCheckResponse_NOT_SERVING, ready())
	require.Eventually(t, func() bool { return strings.Contains(said.String(), "gpu-1") }, 30*time.Second, time.Millisecond)
	require.NoError(t, os.WriteFile(file, []byte("# two\n10.0.0.1:8000\n10.0.0.2:8000\n\n"), 0o600))
	require.Eventually(t, func() bool { return ready() == healthv1.HealthCheckResponse_SERVING }, 30*time.Second, 10*time.Millisecond)
	stream := rig.Must(extprocv3.NewExternalProcessorClient(conn).Process(ctx))
	head := &extprocv3.HttpHeaders{EndOfStream: true, Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
		{Key: ":method", Value: "GET"}, {Key: ":path", Value: "/v1/realtime?model=m"}, {Key: "upgrade", Value: "websocket"}, {Key: "x-endpick-priority", Value: "soon"},
	}}}
	require.NoError(t, stream.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: head}}))
	rig.Must(stream.Recv())
	require.NoError(t, stream.CloseSend())
	stop()
	require.NoError(t, <-ended)
	assert.Regexp(t, "(?s)stay as they are.*\"gpu-1:8000\" whose address is not an IP and a port.*picking among 2 endpoints.*soon", said.String())
}
