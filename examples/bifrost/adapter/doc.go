// Package adapter lets endpick choose the server of each request that Bifrost sends.
//
// Bifrost sends a request with one of its provider's keys, and the vLLM provider keeps
// the address of a server in each key. [Account] gives it a key for each endpoint of a
// router, and an [Adapter] chooses among them: it is the key selector, and a plugin
// that reads requests, meters responses and learns from failures.
//
//	a, err := adapter.New(adapter.Config{Config: transport.Config{Router: router}})
//	b, err := bifrost.Init(ctx, schemas.BifrostConfig{
//		Account:     &adapter.Account{Router: router},
//		KeySelector: a.SelectKey,
//		LLMPlugins:  []schemas.LLMPlugin{a}, // the last, if there are others
//	})
//
// It needs nothing but package transport and Bifrost's core, and is meant to be copied.
package adapter
