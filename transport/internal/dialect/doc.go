// Package dialect reads clients' requests and engines' responses in the formats of their APIs. It
// has no connections: a RoundTripper, an ext_proc server or a host with a client of its own feeds
// it what arrives, and passes on what it returns.
//
// A [Reader] makes a [Call] of each request: first what the request says about itself, then, when
// the host has added what it knows better, the length and the blocks of its prompt. The call's
// [Meter] reads the response: first token, tokens, usage.
//
//	call, err := reader.Read(dialect.Incoming{Method: "POST", Path: path, Header: header, Body: body})
//	call.Request.Tenant = tenant
//	err = call.Prompt(ctx)
//	lease, err := router.Route(call.Request) // to call.Endpoint(), if it names one
//	send(lease.Endpoint(), call.Body())
//	meter := call.Meter(lease, time.Now)
//	meter.Header(status, header)
//	out = meter.Feed(out, piece) // for each piece
//	out, err = meter.End(out)
//	lease.Done(meter.Outcome(endpick.Completed))
//
// An API is a line in the table of apis: its paths, which members of a request are which part of its
// prompt, and who reads what its responses say, in events of a handful of kinds:
//
//	begins, text, tool, reports (usage), fails, ends
//
// A [Meter] knows no API, only these events; the comment of response has the table of what each
// changes. docs/apis.md lists the APIs, testdata has exchanges with their engines.
package dialect
