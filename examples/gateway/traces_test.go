package main

import (
	"context"
	"encoding/hex"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

type spanReceiver struct {
	collector.UnimplementedTraceServiceServer
	got chan *spans.Span
}

func (r *spanReceiver) Export(_ context.Context, in *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	for _, resource := range in.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, s := range scope.Spans {
				r.got <- s
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// The gateway's spans reach a collector and continue in its servers.
func TestTraces(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &spanReceiver{got: make(chan *spans.Span, 10)}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, r)
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50")

	parents := make(chan string, 1)
	engine := answering(t, func(w http.ResponseWriter, in *http.Request) {
		parents <- in.Header.Get("Traceparent")
		_, _ = w.Write([]byte(`{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}`))
	})
	c := start(t, "-backend", engine.URL)
	status, body := post(t, c.url, false)
	require.Equal(t, http.StatusOK, status, body)
	select {
	case s := <-r.got:
		require.Equal(t, "chat demo-8b", s.Name)
		require.Equal(t, "00-"+hex.EncodeToString(s.TraceId)+"-"+hex.EncodeToString(s.SpanId)+"-01", <-parents)
		got := map[string]string{}
		for _, a := range s.Attributes {
			got[a.Key] = a.Value.GetStringValue()
		}
		require.Equal(t, engine.URL, got["endpick.endpoint"])
		require.Equal(t, "marginal-delay", got["endpick.policy"])
	case <-time.After(30 * time.Second):
		t.Fatal("no span came")
	}
	c.interrupt()
	require.Equal(t, 0, <-c.status, c.stderr)
}

// A collector that is not there is in the gateway's log, in its format.
func TestTracesWithoutCollector(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
	t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "50")
	c := start(t, "-backend", newBackend(t).URL)
	status, _ := post(t, c.url, false)
	require.Equal(t, http.StatusOK, status)
	c.logs(t, "level=WARN msg=traces error=", 1)
}
