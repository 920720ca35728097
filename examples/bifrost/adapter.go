package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
	"github.com/maximhq/bifrost/core/keyselectors"
	"github.com/maximhq/bifrost/core/schemas"
)

// AdapterConfig configures an [Adapter]. Router is required.
type AdapterConfig struct {
	// Config configures the dispatcher. MaxAttempts is how many servers a request is sent
	// to; each after the first is a fallback for Bifrost. Zero: 3.
	transport.Config
	// Provider is the provider whose keys are chosen. Empty: vLLM.
	Provider schemas.ModelProvider
	// Prepare sets what the host knows better about a request before it is routed:
	// its tenant, priority or targets. Nil: nothing.
	Prepare func(ctx *schemas.BifrostContext, call *transport.Call)
}

// Adapter lets endpick choose the server of each request that Bifrost sends. Bifrost sends a
// request with one of its provider's keys, and the vLLM provider keeps the address of a server in
// each key. [Account] gives it a key for each endpoint of a router, and an Adapter chooses among
// them: it is the key selector, and a plugin that reads requests, meters responses and learns from
// failures.
//
// It is safe for concurrent use, as long as each request has a context of its own.
type Adapter struct {
	dispatcher *transport.Dispatcher
	router     *endpick.Router
	attempts   int
	provider   schemas.ModelProvider
	prepare    func(ctx *schemas.BifrostContext, call *transport.Call)
}

var (
	_ schemas.LLMPlugin   = (*Adapter)(nil)
	_ schemas.KeySelector = (*Adapter)(nil).SelectKey
)

// NewAdapter returns an adapter, or an [endpick.ConfigError].
func NewAdapter(c AdapterConfig) (*Adapter, error) {
	c.Pass = append(slices.Clone(c.Pass), "/v1/other") // what wire does not read; Bifrost knows the API
	s, err := transport.NewDispatcher(c.Config)
	if err != nil {
		return nil, err
	}
	return &Adapter{
		dispatcher: s, router: c.Router, attempts: cmp.Or(c.MaxAttempts, 3),
		provider: cmp.Or(c.Provider, schemas.VLLM), prepare: c.Prepare,
	}, nil
}

// GetName implements [schemas.BasePlugin].
func (a *Adapter) GetName() string { return "endpick" }

// Cleanup implements [schemas.BasePlugin].
func (a *Adapter) Cleanup() error { return nil }

// PreRequestHook gives a request as many fallbacks to the same provider as there
// may be further attempts. Each goes through key selection again.
func (a *Adapter) PreRequestHook(ctx *schemas.BifrostContext, req *schemas.BifrostRequest) error {
	if f := flightOf(ctx); f != nil { // of an earlier request in the same context
		f.land()
		ctx.ClearValue(flightKey{})
	}
	provider, model, fallbacks := req.GetRequestFields()
	all := a.again(nil, provider, model)
	for _, f := range fallbacks {
		all = a.again(append(all, f), f.Provider, f.Model)
	}
	if len(all) > len(fallbacks) {
		req.SetFallbacks(all)
	}
	return nil
}

// again appends the fallbacks for further attempts.
func (a *Adapter) again(all []schemas.Fallback, provider schemas.ModelProvider, model string) []schemas.Fallback {
	if provider != a.provider {
		return all
	}
	return append(all, slices.Repeat([]schemas.Fallback{{Provider: provider, Model: model}}, a.attempts-1)...)
}

// PreLLMHook reads a request before its first attempt, and ends the attempts of one
// that no other server should get.
func (a *Adapter) PreLLMHook(ctx *schemas.BifrostContext, req *schemas.BifrostRequest) (*schemas.BifrostRequest, *schemas.LLMPluginShortCircuit, error) {
	provider, model, _ := req.GetRequestFields()
	if provider != a.provider {
		return req, nil, nil
	}
	f := flightOf(ctx)
	if f == nil || !f.continues(model) {
		f = a.read(ctx, req, model)
		ctx.SetValue(flightKey{}, f)
	}
	if err := f.refusal(); err != nil {
		return req, &schemas.LLMPluginShortCircuit{Error: err}, nil
	}
	return req, nil, nil
}

// read reads a request. One that can't be routed is finished from the start.
func (a *Adapter) read(ctx *schemas.BifrostContext, req *schemas.BifrostRequest, model string) *flight {
	path, stream, body, err := wire(ctx, req, model)
	f := &flight{model: model, path: path, stream: stream}
	if err == nil {
		f.call, err = a.dispatcher.Read(transport.Incoming{Method: http.MethodPost, Path: path, Header: headers(ctx), Body: body})
	}
	if err != nil {
		f.refuse(err)
		return f
	}
	if a.prepare != nil {
		a.prepare(ctx, f.call)
	}
	return f
}

// SelectKey is a [schemas.KeySelector]. It opens a lease for the request at the server
// whose key it returns. Requests to other providers, and those that bypass plugins, get
// a random key, as without it.
func (a *Adapter) SelectKey(ctx *schemas.BifrostContext, keys []schemas.Key, provider schemas.ModelProvider, model string) (schemas.Key, error) {
	if f := flightOf(ctx); f != nil && provider == a.provider {
		attempt, err := f.route(ctx.Root(), a.without(keys))
		switch {
		case errors.Is(err, errLanded):
		case err != nil:
			return schemas.Key{}, err
		default:
			id := attempt.Endpoint().ID
			i := slices.IndexFunc(keys, func(k schemas.Key) bool { return k.ID == id })
			if i < 0 { // it was added between the list of keys and the choice
				f.land()
				return schemas.Key{}, fmt.Errorf("adapter: endpoint %q has no key", id)
			}
			tell(ctx, attempt)
			return keys[i], nil
		}
	}
	return keyselectors.WeightedRandom(ctx, keys, provider, model)
}

// without returns the endpoints that none of the keys belongs to.
func (a *Adapter) without(keys []schemas.Key) (ids []string) {
	have := make(map[string]bool, len(keys))
	for i := range keys {
		have[keys[i].ID] = true
	}
	all := a.router.Endpoints()
	for i := range all {
		if id := all[i].Candidate.Endpoint.ID; !have[id] {
			ids = append(ids, id)
		}
	}
	return ids
}

// tell sets the header that a data-parallel rank needs.
func tell(ctx *schemas.BifrostContext, attempt *transport.Attempt) {
	const name = "X-Data-Parallel-Rank"
	h := http.Header{}
	attempt.SetHeader(h)
	before, _ := ctx.Value(schemas.BifrostContextKeyExtraHeaders).(map[string][]string)
	if h[name] == nil && before[name] == nil {
		return
	}
	extra := map[string][]string{}
	maps.Copy(extra, before)
	extra[name] = h[name]
	ctx.SetValue(schemas.BifrostContextKeyExtraHeaders, extra)
}

// PostLLMHook meters a response, or a chunk of it, and handles errors. It changes
// nothing but the status of errors of its own.
func (a *Adapter) PostLLMHook(ctx *schemas.BifrostContext, resp *schemas.BifrostResponse, failure *schemas.BifrostError) (*schemas.BifrostResponse, *schemas.BifrostError, error) {
	if f := flightOf(ctx); f != nil {
		f.heard(ctx, resp, failure)
	}
	return resp, failure, nil
}
