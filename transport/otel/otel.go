package otel

import (
	"cmp"
	"context"
	"net/http"
	"sync/atomic"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

const scope = "github.com/endpick/endpick/transport/otel"

// Config configures a [Tracer]. All fields are optional.
type Config struct {
	// Provider makes the spans. Nil: otel.GetTracerProvider, asked in New.
	Provider trace.TracerProvider
	// Propagator writes the context of a span into the headers for the engine. Nil:
	// propagation.TraceContext, the headers traceparent and tracestate of the W3C.
	Propagator propagation.TextMapPropagator
	// TrustParent makes the context in the headers of a request the parent of its
	// span. By default the span is only linked to it, because any client could
	// otherwise decide what is sampled and in whose trace it appears. A span in the
	// context of the request, such as that of otelhttp, is the parent anyway.
	TrustParent bool
	// ProviderName is gen_ai.provider.name. Empty: "endpick".
	ProviderName string
}

// Tracer makes the spans. Make one with [New]; it is safe for concurrent use.
type Tracer struct {
	config Config
	tracer trace.Tracer
}

// New returns a Tracer.
func New(config Config) *Tracer {
	if config.Provider == nil {
		config.Provider = otel.GetTracerProvider()
	}
	if config.Propagator == nil {
		config.Propagator = propagation.TraceContext{}
	}
	config.ProviderName = cmp.Or(config.ProviderName, "endpick")
	return &Tracer{config: config, tracer: config.Provider.Tracer(scope)}
}

// flight is a request with a span.
type flight struct {
	tracer    *Tracer
	span      trace.Span
	described atomic.Bool // Observe will be called
}

type flightKey struct{}

func flightOf(ctx context.Context, t *Tracer) *flight {
	f, _ := ctx.Value(flightKey{}).(*flight)
	if f == nil || f.tracer != t {
		return nil
	}
	return f
}

// RoundTripper starts a span for each request to next, which is a
// [transport.Transport] with Describe and Observe, or leads to one. The context of
// the request that next gets has the span.
func (t *Tracer) RoundTripper(next http.RoundTripper) http.RoundTripper {
	return &roundTripper{t, next}
}

type roundTripper struct {
	tracer *Tracer
	next   http.RoundTripper
}

func (rt *roundTripper) RoundTrip(in *http.Request) (response *http.Response, err error) {
	t := rt.tracer
	operation := operationOf(in.URL.Path)
	options := []trace.SpanStartOption{
		trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(operationKey.String(operation), providerKey.String(t.config.ProviderName), pathKey.String(short(in.URL.Path))),
	}
	ctx := in.Context()
	if !trace.SpanContextFromContext(ctx).IsValid() {
		theirs := t.config.Propagator.Extract(ctx, propagation.HeaderCarrier(in.Header))
		if t.config.TrustParent {
			ctx = theirs
		} else if link := trace.LinkFromContext(theirs); link.SpanContext.IsValid() {
			options = append(options, trace.WithLinks(link))
		}
	}
	ctx, span := t.tracer.Start(ctx, operation, options...)
	f := &flight{tracer: t, span: span}
	out := in.Clone(context.WithValue(ctx, flightKey{}, f))
	for _, name := range t.config.Propagator.Fields() {
		out.Header.Del(name) // without a sampled span, the client's headers must not remain
	}
	t.config.Propagator.Inject(ctx, propagation.HeaderCarrier(out.Header))
	returned := false
	defer func() {
		if !returned {
			span.SetStatus(codes.Error, "panic")
		}
		if !returned || !f.described.Load() {
			span.End() // no effect if Observe has ended it
		}
	}()
	response, err = rt.next.RoundTrip(out)
	returned = true
	if response != nil && response.Request == out {
		response.Request = in
	}
	return response, err
}

// CloseIdleConnections passes the call on.
func (rt *roundTripper) CloseIdleConnections() {
	if c, ok := rt.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Describe requests a receipt for a request whose span is recorded; use it for
// transport.Config.Describe. An existing receipt is used.
func (t *Tracer) Describe(in *http.Request, _ []byte, req *endpick.Request) {
	f := flightOf(in.Context(), t)
	if f == nil {
		return
	}
	f.described.Store(true)
	if f.span.IsRecording() && req.Receipt == nil {
		req.Receipt = new(endpick.Receipt)
	}
}

// Observe ends the span of a request; use it for transport.Config.Observe.
func (t *Tracer) Observe(r *transport.Observation) {
	f := flightOf(r.In.Context(), t)
	if f == nil {
		return
	}
	defer f.span.End()
	if !f.span.IsRecording() {
		return
	}
	if r.Model != "" {
		f.span.SetName(operationOf(r.In.URL.Path) + " " + short(r.Model))
	}
	describe(f.span, r)
}
