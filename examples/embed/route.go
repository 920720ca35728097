package main

import (
	"cmp"
	"context"
	"errors"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/transport/health"
)

// worker sends requests one after another, in a host that has its own way of
// talking to servers.
type worker struct {
	router *endpick.Router
	health *health.Monitor // keeps requests away from servers that fail
	seed   prefix.Seed     // prefix.Scope{Model: "llama"}.Seed()
	blocks []uint64        // reused for every prompt
}

// errRefused is what stream returns if the server answers 4xx.
var errRefused = errors.New("the server refused the request")

// send calls stream, which sends the prompt, calls token for each token, and
// returns what the engine's usage says.
func (w *worker) send(ctx context.Context, prompt []uint32, stream func(e *endpick.Endpoint, token func()) (endpick.Outcome, error)) error {
	w.blocks = prefix.AppendTokens(w.blocks[:0], w.seed, prompt)
	req := endpick.Request{Model: "llama", InputTokens: len(prompt), Blocks: w.blocks, Stream: true}
	h := health.Request{Monitor: w.health}
	defer h.Close()
	var failure error
	for {
		h.Avoid(&req)
		lease, err := w.router.Route(req)
		if err != nil {
			return cmp.Or(failure, err) // nobody is left, or the request was not admitted
		}
		h.Sent(lease, req.Stream)
		tokens := 0
		var usage endpick.Outcome // InputTokens, OutputTokens, CachedTokens and HasCachedTokens
		usage, failure = stream(lease.Endpoint(), func() {
			if tokens++; tokens == 1 {
				h.Served()
			}
			lease.Tokens(1)
		})
		switch {
		case failure == nil:
			lease.Done(usage)
			return nil
		case ctx.Err() != nil:
			lease.Done(endpick.Outcome{Status: endpick.Canceled}) // the client has gone: nobody's failure
			return failure
		case errors.Is(failure, errRefused):
			lease.Done(endpick.Outcome{Status: endpick.Refused}) // not the server's fault either
			return failure
		}
		lease.Done(endpick.Outcome{Status: endpick.Failed})
		h.Failed(failure)
		if tokens > 0 {
			return failure // too late to ask another
		}
		req.Exclude = append(req.Exclude, lease.Endpoint().ID)
	}
}
