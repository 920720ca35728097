// Package seam is for programs that send requests themselves: a gateway with an
// HTTP client of its own, a proxy that asks which key or address to take, an
// Envoy ext_proc server. It does all that package transport does but for the
// connection: it reads a request, says which endpoint should get it, meters the
// response, and learns from how it went. Where a program can use an
// http.RoundTripper, package transport is less work.
//
//	call, err := s.Read(seam.Incoming{Method: in.Method, Path: in.URL.Path, Header: in.Header, Body: body})
//	defer call.Close()                        // nothing stays open, whatever happens
//	attempt, err := call.Route(ctx)           // attempt.Endpoint() is to get call.Body()
//	attempt.SetHeader(out.Header)
//	err = attempt.Header(status, header, nil) // or attempt.Fail(err) if there is no response
//	b = attempt.Feed(b[:0], piece)            // for each piece; b is for the client
//	b, err = attempt.End(b[:0])
//
// Where the body is a reader, [Attempt.Reader] does the last two.
//
// [Seam.Read] fails for requests that no engine should get, [Call.Route] where no
// endpoint can take the request: [ErrorResponse] is what the client is told then.
//
// # Trying again
//
// A [Call] can be routed several times. [Attempt.Header] and [Attempt.Fail] return
// why an endpoint has failed the request, and [Attempt.Again] whether another should
// be asked, by the rules of package transport. A program that leaves retries to
// others, as an Envoy does, gives them [Attempt.Fallbacks] and says with
// [Attempt.ServedBy] who has served the request in the end.
//
// # Health
//
// What becomes of requests is held against endpoints by the rules of package
// transport, which see: those that fail others are avoided and led back. One that
// says nothing is noticed by how long requests wait there for their header.
//
// # What the program owes
//
// Each Call is closed, whatever happens. One that is forgotten ends with the context
// that Route was given, or is reaped when its router's LeaseTimeout has passed since
// the last piece. The pieces
// that are fed are those that the endpoint sends, without a content coding:
// [Attempt.SetHeader] asks for that. What Feed and End give back goes to the client
// in place of what was fed.
package seam
