package main

import (
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

// send sends one request of a host that has its own way of talking to servers.
func send(router *endpick.Router, prompt []uint32, stream func(endpoint *endpick.Endpoint, token func()) error) error {
	blocks := prefix.AppendTokens(nil, prefix.Scope{Model: "llama"}.Seed(), prompt)
	lease, err := router.Route(endpick.Request{
		Model: "llama", InputTokens: len(prompt), Blocks: blocks, Stream: true,
	})
	if err != nil {
		return err // nobody serves the model, or the request was not admitted
	}
	err = stream(lease.Endpoint(), func() { lease.Tokens(1) })
	if err != nil {
		lease.Done(endpick.Outcome{Status: endpick.Failed})
		return err
	}
	lease.Done(endpick.Outcome{})
	return nil
}
