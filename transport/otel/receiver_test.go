package otel_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// receiver takes spans over OTLP, as a collector does.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*spans.Span
	scope string
}

func (r *receiver) Export(_ context.Context, in *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range in.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			r.scope = scope.Scope.GetName()
			r.spans = append(r.spans, scope.Spans...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// wait returns the spans once there are n of them.
func (r *receiver) wait(t *testing.T, n int) []*spans.Span {
	require.Eventually(t, func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.spans) >= n }, 30*time.Second, time.Millisecond)
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Len(t, r.spans, n)
	return r.spans
}

// newReceiver starts one, with a provider that exports each span when it ends.
func newReceiver(t *testing.T, options ...sdk.TracerProviderOption) (*receiver, *sdk.TracerProvider) {
	r := &receiver{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, r)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	exporter, err := otlptracegrpc.New(t.Context(), otlptracegrpc.WithInsecure(), otlptracegrpc.WithEndpoint(l.Addr().String()))
	require.NoError(t, err)
	provider := sdk.NewTracerProvider(append(options, sdk.WithSyncer(exporter))...)
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	return r, provider
}

// attributes returns those of a span or an event as Go types.
func attributes(all []*common.KeyValue) map[string]any {
	got := map[string]any{}
	for _, kv := range all {
		got[kv.Key] = value(kv.Value)
	}
	return got
}

func value(v *common.AnyValue) any {
	switch v := v.Value.(type) {
	case *common.AnyValue_StringValue:
		return v.StringValue
	case *common.AnyValue_BoolValue:
		return v.BoolValue
	case *common.AnyValue_IntValue:
		return v.IntValue
	case *common.AnyValue_DoubleValue:
		return v.DoubleValue
	case *common.AnyValue_ArrayValue:
		all := []any{}
		for _, x := range v.ArrayValue.Values {
			all = append(all, value(x))
		}
		return all
	}
	return fmt.Sprint(v)
}
