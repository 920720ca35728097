package otel_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/otel"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

func traced(router *endpick.Router) (http.Handler, error) {
	tracer := otel.New(otel.Config{})
	routed, err := transport.New(transport.Config{Router: router, Describe: tracer.Describe, Observe: tracer.Observe})
	if err != nil {
		return nil, err
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:      func(*httputil.ProxyRequest) {}, // the transport chooses the target
		Transport:    tracer.RoundTripper(routed),
		ErrorHandler: transport.ErrorHandler,
	}
	return proxy, nil
}

// names prints spans as they end.
type names struct{}

func (names) ExportSpans(_ context.Context, spans []sdk.ReadOnlySpan) error {
	for _, s := range spans {
		fmt.Println(s.Name())
		for _, a := range s.Attributes() {
			if a.Key == "endpick.endpoint" || a.Key == "gen_ai.usage.output_tokens" {
				fmt.Println(a.Key, a.Value.String())
			}
		}
	}
	return nil
}

func (names) Shutdown(context.Context) error { return nil }

// A gateway with a span for each request. Without a Provider, spans go to the global
// one (otel.SetTracerProvider).
func Example() {
	_ = traced // in docs/watching.md
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"choices":[{"text":"Hello!"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`)
	}))
	defer engine.Close()
	router, err := endpick.New(endpick.Config{Endpoints: []endpick.Endpoint{{ID: "gpu-0", Address: engine.URL}}})
	if err != nil {
		panic(err)
	}
	tracer := otel.New(otel.Config{Provider: sdk.NewTracerProvider(sdk.WithSyncer(names{}))})
	routed, err := transport.New(transport.Config{Router: router, Describe: tracer.Describe, Observe: tracer.Observe})
	if err != nil {
		panic(err)
	}
	defer routed.CloseIdleConnections()
	client := &http.Client{Transport: tracer.RoundTripper(routed)}
	resp, err := client.Post("http://gateway/v1/completions", "application/json", strings.NewReader(`{"model":"llama","prompt":"Hi!"}`))
	if err != nil {
		panic(err)
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	// Output:
	// text_completion llama
	// gen_ai.usage.output_tokens 2
	// endpick.endpoint gpu-0
}
