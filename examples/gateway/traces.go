package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/endpick/endpick/transport/otel"
	api "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// traces sends a span for each request to a collector.
type traces struct {
	*otel.Tracer
	provider *sdk.TracerProvider
}

// newTraces sends spans to where OpenTelemetry's environment variables say, over
// gRPC; nil: they name no collector. They also determine sampling and the service's
// name.
//
// With trusted, a request's span is a child of the one that its headers name.
func newTraces(trusted bool, logger *slog.Logger) (*traces, error) {
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return nil, nil
	}
	exporter, err := otlptracegrpc.New(context.Background())
	if err != nil {
		return nil, err
	}
	api.SetErrorHandler(api.ErrorHandlerFunc(func(err error) { logger.Warn("traces", "error", err) }))
	provider := sdk.NewTracerProvider(sdk.WithBatcher(exporter))
	return &traces{otel.New(otel.Config{Provider: provider, TrustParent: trusted}), provider}, nil
}

// close sends the remaining spans, for five seconds at most.
func (t *traces) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return t.provider.Shutdown(ctx)
}
