// Package otel makes a span for each request, with the receipt of its decision: where
// it went and why, what was predicted and what was measured.
//
//	tracer := otel.New(otel.Config{})
//	…
//	routed, err := transport.New(transport.Config{
//		Router: router, Describe: tracer.Describe, Observe: tracer.Observe,
//	})
//	…
//	proxy.Transport = tracer.RoundTripper(routed)
//
// The span ends with the response. Its context goes to the engine in the request's
// headers, replacing the client's, so that the engine's own spans are below it.
//
// Spans have the names and attributes of OpenTelemetry's semantic conventions for
// generative AI where these exist; all others begin with endpick. No attribute holds
// text of a prompt or a response. Strings from clients, the model above all, are cut
// to 256 bytes.
package otel
