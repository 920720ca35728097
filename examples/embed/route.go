package main

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

// worker sends requests one after another, in a host that has its own way of
// talking to servers.
type worker struct {
	router *endpick.Router
	seed   prefix.Seed // prefix.Scope{Model: "llama"}.Seed()
	blocks []uint64    // used again for every prompt
}

func (w *worker) send(prompt []uint32, stream func(e *endpick.Endpoint, token func()) error) error {
	w.blocks = prefix.AppendTokens(w.blocks[:0], w.seed, prompt)
	lease, err := w.router.Route(endpick.Request{
		Model: "llama", InputTokens: len(prompt), Blocks: w.blocks, Stream: true,
	})
	if err != nil {
		return err // nobody serves the model, or the request was not admitted
	}
	if err := stream(lease.Endpoint(), func() { lease.Tokens(1) }); err != nil {
		lease.Done(endpick.Outcome{Status: endpick.Failed})
		return err
	}
	lease.Done(endpick.Outcome{})
	return nil
}
