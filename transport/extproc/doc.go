// Package extproc is an endpoint picker for Envoy and the gateways that speak its
// protocol: the Endpoint Picker Protocol, proposal 004 of the Gateway API Inference
// Extension, version 1.0.0, over Envoy's external processing service. Envoy Gateway,
// Envoy AI Gateway, Istio, kgateway, agentgateway and GKE ask such a picker, for
// each request, which server it should go to.
//
//	server, err := extproc.New(extproc.Config{Dispatcher: transport.Config{Router: router, Fallbacks: 2}})
//	err = server.Serve(ctx, listener, grpc.Creds(credentials.NewTLS(config)))
//
// For each request it names the chosen server, and those to try next, in the header
// [DestinationHeader] and in dynamic metadata "envoy.lb" of the same name. It meters
// the response as package transport does, and learns from it.
//
// # What the proxy has to send
//
// Headers and bodies both ways, the bodies in mode FULL_DUPLEX_STREAMED or BUFFERED. In
// FULL_DUPLEX_STREAMED, trailers have to be sent too, as Envoy's documentation demands.
// The first message announces the mode; if it does not, the mode is assumed to be
// FULL_DUPLEX_STREAMED, unless Config.Buffered is set. If the body of a request is not
// sent, it is routed by load alone; if that of a response is not, nothing is metered.
// An upgrade request is also routed by load, because its body has no end.
//
// # What is answered without a server
//
//	503  no server can take the request, or none of those that the proxy names
//	429  an Admitter refused the request
//	404  no server serves the model, or the path is not passed on
//	400  the request is not valid
//	413  the body is too long
//	415  it has an unknown Content-Encoding
//
// as errors in the format of the request's API; see transport.ErrorResponse.
package extproc
