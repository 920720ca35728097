// Package extproc is an endpoint picker for Envoy and the gateways that speak its
// protocol: the Endpoint Picker Protocol, proposal 004 of the Gateway API Inference
// Extension, version 1.0.0, over Envoy's external processing service. Envoy Gateway,
// Envoy AI Gateway, Istio, kgateway, agentgateway and GKE ask such a picker for each
// request which server should get it.
//
//	server, err := extproc.New(extproc.Config{Seam: seam.Config{Router: router, Fallbacks: 2}})
//	err = server.Serve(ctx, listener, grpc.Creds(credentials.NewTLS(config)))
//
// For each request it names the chosen server, and those to try after it, in header
// [DestinationHeader] and in dynamic metadata "envoy.lb" of the same name. It meters
// the response as package transport does, and learns from it.
//
// # What the proxy has to send
//
// Headers and bodies both ways, the bodies in mode FULL_DUPLEX_STREAMED or BUFFERED. In
// FULL_DUPLEX_STREAMED trailers have to be sent too, as Envoy's documentation demands.
// The mode is told by the first message; a proxy that does not tell is taken to use
// FULL_DUPLEX_STREAMED, unless [Config].Buffered says otherwise. Without the body of a
// request it is routed by load alone, without that of a response nothing is metered. So
// is a request that would be upgraded, whose body has no end.
//
// # What is answered without a server
//
//	503  no server can take the request, or none of those that the proxy names
//	429  an Admitter refused the request
//	404  no server serves the model
//	400  the request is not valid
//	403  the path administers an engine
//	413  the body is too long
//
// as errors in the shape of the API of the request, see [transport.ErrorResponse].
package extproc
