// Package dialect reads what clients ask of language models and what engines
// answer, in the dialects of the APIs that they speak. It owns no connection: a
// RoundTripper, an ext_proc server or a host with a client of its own feed it
// with what comes, and pass on what it gives back.
//
// A [Reader] makes a [Call] of each request: first what it says of itself, then,
// when the host has added what it knows better, the length and the blocks of its
// prompt. The call's [Meter] reads the response: first token, tokens, usage.
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
// What a dialect is, is in a file of its own and a line in the table of dialects:
// which paths are its, where the prompt of its requests is, what the events of its
// streams say, what its usage is called, what of a response the client will send
// back, and how its errors look. docs/apis.md lists them.
package dialect
