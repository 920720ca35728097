// Package seam is for programs that send requests themselves: a gateway with an
// HTTP client of its own, a proxy that asks which key or address to use, an Envoy
// ext_proc server. It does everything that package transport does except sending
// the request: it parses it, chooses the endpoint, meters the response, and learns
// from the outcome. If your program can use an http.RoundTripper, package transport
// is less work.
//
//	call, err := s.Read(seam.Incoming{Method: in.Method, Path: in.URL.Path, Header: in.Header, Body: body})
//	defer call.Close() // nothing stays open, whatever happens
//	attempt, err := call.Route(ctx)
//	to, err := transport.Target(attempt.Endpoint(), in.URL)
//	attempt.SetHeader(out.Header)             // send call.Body() to that URL
//	err = attempt.Header(status, header, nil) // or attempt.Fail(err) if there is no response
//	b = attempt.Feed(b[:0], piece)            // for each piece; b is for the client
//	b, err = attempt.End(b[:0])
//
// If the body is a reader, [Attempt.Reader] does the last two. The example is a
// whole gateway.
//
// [Seam.Read] fails for requests that no engine should get, and [Call.Route] if no
// endpoint can take the request. [ErrorResponse] turns either error into a response
// for the client.
//
// # Retries
//
// A [Call] can be routed several times. [Attempt.Header] and [Attempt.Fail] return
// why an endpoint failed the request, and [Attempt.Again] whether to try another,
// by the rules of package transport. A program that leaves retries to others, as an
// Envoy does, passes on [Attempt.Fallbacks], and reports with [Attempt.ServedBy] who
// served the request in the end.
//
// # Health
//
// Outcomes count towards the endpoints' health by the rules of package transport:
// endpoints that fail requests which others serve are avoided, and tried again
// gradually. Silent endpoints are noticed by how long requests wait for a header.
//
// # The caller's duties
//
// Close every Call. One that is forgotten ends with the context given to Route, or
// when the router's LeaseTimeout has passed since the last piece. Feed the bytes that
// the endpoint sends, uncompressed ([Attempt.SetHeader] asks for that), and give the
// client what Feed and End return instead of them.
package seam
