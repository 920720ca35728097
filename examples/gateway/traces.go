package main

import (
	"context"
	"os"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/endpick/endpick/transport/otel"
)

// traces sends a span of each request to a collector.
type traces struct {
	*otel.Tracer
	provider *sdk.TracerProvider
}

// newTraces sends them where OpenTelemetry's own variables say, over gRPC; nil: they
// name no collector. Sampling and the service's name are theirs as well.
//
// trusted says that the trace that a request names is taken for its own.
func newTraces(trusted bool) (*traces, error) {
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return nil, nil
	}
	exporter, err := otlptracegrpc.New(context.Background())
	if err != nil {
		return nil, err
	}
	provider := sdk.NewTracerProvider(sdk.WithBatcher(exporter))
	return &traces{otel.New(otel.Config{Provider: provider, TrustParent: trusted}), provider}, nil
}

// close sends what is left, for five seconds at most.
func (t *traces) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return t.provider.Shutdown(ctx)
}
