package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/endpick/endpick/internal/lab/traffic"
)

// TestCompare runs a small comparison in both modes: all requests are served, measured
// and closed.
func TestCompare(t *testing.T) {
	for _, mode := range []string{"-buffered=false", "-buffered"} {
		var stdout bytes.Buffer
		o, err := parse([]string{"-duration", "500ms", "-rate", "20", "-servers", "2", "-pairs", "0", mode}, &stdout)
		require.NoError(t, err)
		o.Groups, o.SystemTokens, o.OutputTokens, o.Turns, o.Think = 2, 300, 8, 2, 10*time.Millisecond
		require.NoError(t, compare(t.Context(), o, &stdout))
		lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
		assert.Regexp(t, `^ok: \d+ requests over \d+ streams of the protocol; TTFT p50 .* no lease left$`, lines[len(lines)-1])
	}
}

// TestInStep plays a few conversations in step, in both modes. More of them are
// needed to tell picker and transport apart.
func TestInStep(t *testing.T) {
	for _, mode := range []string{"-buffered=false", "-buffered"} {
		o, err := parse([]string{"-duration", "1s", mode}, new(bytes.Buffer))
		require.NoError(t, err)
		o.Groups, o.SystemTokens, o.OutputTokens = 2, 300, 8
		hits, err := traffic.PairHits(t.Context(), o.Workload, 1, atOnce, o.kvTokens, o.opener(throughPicker), o.opener(throughTransport))
		require.NoError(t, err)
		assert.Greater(t, min(hits.A[0], hits.B[0]), 0.1)
	}
}

func TestArguments(t *testing.T) {
	for _, args := range [][]string{{"x"}, {"-servers", "0"}, {"-listen", ":0"}, {"-listen", ":0", "-dns", "a:1", "-endpoints", "f"}, {"-policy", "best"}, {"-rate", "-1"}, {"-listen", ":0", "-dns", "models"}, {"-listen", ":0", "-dns", "models:http"}, {"-pairs", "-1"}} {
		var stderr bytes.Buffer
		assert.Equal(t, 2, run(t.Context(), args, nil, &stderr), "%v", args)
		assert.NotEmpty(t, stderr.String())
	}
	assert.Zero(t, run(t.Context(), []string{"-help"}, nil, new(bytes.Buffer)))
	assert.Equal(t, 1, run(t.Context(), []string{"-listen", "nowhere", "-endpoints", "f"}, nil, new(bytes.Buffer)))
}

func TestSummaryTellsWhatFailed(t *testing.T) {
	good := traffic.Result{Requests: 3, TTFT: &traffic.Percentiles{P50: 2}, PrefixHitRatio: new(float64)}
	bad := good
	bad.Failed, bad.FirstErr = 1, errors.New("broken off")
	assert.NoError(t, summary(new(bytes.Buffer), []traffic.Result{good, good, good}, 6, &traffic.Paired{A: []float64{0.9}, B: []float64{0.895}}))
	assert.ErrorContains(t, summary(new(bytes.Buffer), []traffic.Result{good, bad, good}, 6, new(traffic.Paired)), "broken off")
	assert.ErrorContains(t, summary(new(bytes.Buffer), []traffic.Result{good, good, good}, 6, &traffic.Paired{A: []float64{0.9}, B: []float64{0.88}}), "more than a point apart")
	assert.Error(t, summary(new(bytes.Buffer), []traffic.Result{good, {}, good}, 6, new(traffic.Paired)))
}

// TestServe asks a running picker for its health, over TLS: it is ready once it has
// read its file.
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
