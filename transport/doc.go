// Package transport sends LLM requests to the endpoints that an [endpick.Router]
// chooses, over the APIs of OpenAI, Anthropic and the engines. A [Transport] is an
// http.RoundTripper: use it in an http.Client, or in an httputil.ReverseProxy
// together with [ErrorHandler].
//
// It reads the whole request, chooses an endpoint, rewrites the target, and
// meters the response as it passes: first token, token counts, usage. The lease
// is closed when the response ends or breaks off, or the client disconnects.
//
// # Retries
//
// A request goes to another endpoint if one can't be reached, sends nothing in
// time, breaks off before the client has seen anything, answers 429 or
// 5xx (except 501 and 505), or answers or begins a stream with an error. A response is
// therefore returned with its first byte, not before; JSON when it is whole, up to 1 MiB,
// and a stream with the first event that says something instead of announcing it. Of all
// responses together 64 MiB are held. Requests of the APIs in
// docs/apis.md are retried even if an endpoint may have worked on them, because inference
// has no side effects; so are requests for speech, images and moderation. If the engine is to run
// tools for a request, such as those of an MCP server, or nothing is known of its path, it
// is retried only if its method is safe or the endpoint has not begun: it can't be
// reached, or answers 429.
// A request whose client has disconnected is never retried, nor one that two endpoints
// had when they broke off.
//
// A stream that breaks off later goes on at another endpoint if both have an Engine that
// continues a text and the request asks for nothing but text; docs/apis.md has the conditions.
// Otherwise it ends with an error event in the format of its API, and its connection breaks.
//
// A refusal (400 and the like) goes to the client. Another endpoint is asked, now and then,
// if this one may lack the model or the API (404, 405, 501), or has refused two in a row.
//
// # Health
//
// The server that fails fastest always looks idlest, so it matters how the requests at
// an endpoint end. An endpoint has failed a request if it can't be
// reached, or if another endpoint has then served the request; a request that all
// endpoints fail counts against none of them. An endpoint is avoided if it fails a
// quarter of its requests and clearly more than the others, or if it has sent nothing
// to anybody for much longer than the others take. One to fifteen seconds later it
// gets a single request as a trial, then a tenth of its traffic, and its full share
// fifteen seconds after that. If all endpoints are avoided, all are used anyway,
// except those known to hang; if that leaves none, clients get an error at once.
// Package transport/health shows which endpoints are unhealthy and why, and can
// check them actively.
//
// # Queueing
//
// With Config.Queue, requests wait while the endpoints are full, and are routed in
// the order of a [queue.Queue] when there is room. Decisions are then made one at a
// time. A request that can't wait, or has waited too long, fails with a [queue.Error].
//
// # Other requests
//
// Chat, completions, Anthropic's messages, responses, embeddings, reranking,
// transcription and the engines' own APIs are read; docs/apis.md has the table.
// All other requests are refused ([ErrUnknownPath]), unless Config.Pass has them: these are
// passed on unmetered, and routed by load, with a length guessed from their size. If no model
// can be read from a request, it may go to any endpoint.
//
// # Refused requests
//
// These get an [endpick.RequestError], status 400: a model that is not a string;
// names of models, sessions, tenants and adapters that are longer than 256
// bytes or not UTF-8; bodies that are no JSON object; JSON that is nested deeper
// than 256 levels or has more parts than Config.MaxItems. Anything else that is
// wrong with a request is left to the engine. A body that is longer than
// Config.MaxBodyBytes, or compressed to less than a sixty-fourth, gets 413. In memory, a
// request takes its body and at most a quarter more.
//
// # What is changed
//
// In requests: target and Host; a body in gzip or deflate is sent uncompressed;
// Accept-Encoding becomes identity if the response is metered; a stream whose client
// did not ask for usage asks for it (stream_options.include_usage), except at endpoints
// that have refused that: these get the request again without; an upgrade to another
// version of HTTP is dropped. In responses:
// that usage is removed again, the rest is passed on byte for byte; a
// response that is compressed in spite of Accept-Encoding is passed on in plain
// text, so that it can be metered. Codings other than gzip and deflate are
// passed on as they are and not metered.
//
// # Headers
//
//	X-Slo-Ttft-Ms, X-Slo-Tpot-Ms   latency targets, see slo.FromHeader
//	X-Endpick-Priority             Request.Priority, an integer
//	X-Endpick-Session              Request.Session; without it, what clients of
//	                               several kinds send anyway, see docs/apis.md
//	X-Endpick-Endpoint             in responses: the ID of the endpoint, if
//	                               Config.EnableEndpointHeader asks for it
//
// A gateway that does not trust its clients removes the endpick headers from
// their requests first.
//
// # Programs that send requests themselves
//
// A gateway with an HTTP client of its own, a proxy that asks which key or address to use
// or an Envoy ext_proc server uses a [Dispatcher]: it does everything of the above except sending,
// queueing, records, resuming streams and lists of models. If your program can use an
// http.RoundTripper, a Transport is less work.
//
//	call, err := d.Read(transport.Incoming{Method: in.Method, Path: in.URL.Path, Header: in.Header, Body: body})
//	defer call.Close() // nothing stays open, whatever happens
//	attempt, err := call.Route(ctx)
//	to, err := transport.Target(attempt.Endpoint(), in.URL)
//	attempt.SetHeader(out.Header)             // send call.Body() to that URL
//	err = attempt.Header(status, header, nil) // or attempt.Fail(err) if there is no response
//	b = attempt.Feed(b[:0], piece)            // for each piece; b is for the client
//	b, err = attempt.End(b[:0])
//
// If the body is a reader, [Attempt.Reader] does the last two. [ErrorResponse] turns errors
// of Read and Route into a response for the client. The example of Dispatcher is a whole gateway.
//
// A [Call] can be routed several times. [Attempt.Header] and [Attempt.Fail] return why an
// endpoint failed the request, and [Attempt.Again] whether to try another. A program that
// leaves retries to others, as an Envoy does, uses [Attempt.Fallbacks] and [Attempt.ServedBy].
//
// Close every Call. One that is forgotten ends with the context given to Route, or when
// the router's LeaseTimeout has passed since the last piece. Feed what comes uncompressed,
// and give the client what Feed and End return instead.
package transport
