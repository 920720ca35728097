// Package otel makes a span of each request, with the receipt of its decision: where
// it went and why, what was predicted of it and what came.
//
//	tracer := otel.New(otel.Config{})
//	…
//	routed, err := transport.New(transport.Config{
//		Router: router, Describe: tracer.Describe, Observe: tracer.Observe,
//	})
//	…
//	proxy.Transport = tracer.RoundTripper(routed)
//
// The span ends with the response. Its context goes to the engine in the headers of
// the request, in place of the client's, so that the engine's own spans are below it.
//
// Spans are named and described after the semantic conventions of OpenTelemetry for
// generative AI, as far as these go; what they have no name for begins with endpick.
// No attribute holds text of a prompt or a response. Those that a client writes, the
// model above all, are cut to 256 bytes.
package otel
