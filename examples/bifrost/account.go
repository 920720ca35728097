package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/endpick/endpick"
	"github.com/maximhq/bifrost/core/schemas"
)

// Account has a key of the vLLM provider for each current endpoint of a router; new
// endpoints get requests at once. The ID of a key is that of its endpoint. It is safe
// for concurrent use. A host that has other providers too wraps it.
type Account struct {
	Router *endpick.Router
	// Provider configures how to talk to servers: time limits, workers, proxies.
	// Bifrost sets defaults for zero fields. MaxRetries is ignored, since such a retry
	// goes to the server that has just failed, and so is AllowPrivateNetwork, which is
	// always on.
	Provider schemas.ProviderConfig
}

var _ schemas.Account = (*Account)(nil)

// GetConfiguredProviders implements [schemas.Account].
func (a *Account) GetConfiguredProviders() ([]schemas.ModelProvider, error) {
	return []schemas.ModelProvider{schemas.VLLM}, nil
}

// GetConfigForProvider implements [schemas.Account].
func (a *Account) GetConfigForProvider(provider schemas.ModelProvider) (*schemas.ProviderConfig, error) {
	if provider != schemas.VLLM {
		return nil, fmt.Errorf("adapter: there is no provider %s", provider)
	}
	c := a.Provider
	c.NetworkConfig.MaxRetries = 0
	c.NetworkConfig.AllowPrivateNetwork = true
	return &c, nil
}

// GetKeysForProvider implements [schemas.Account].
func (a *Account) GetKeysForProvider(_ context.Context, provider schemas.ModelProvider) ([]schemas.Key, error) {
	if provider != schemas.VLLM {
		return nil, fmt.Errorf("adapter: there is no provider %s", provider)
	}
	all := a.Router.Endpoints()
	keys := make([]schemas.Key, 0, len(all))
	for i := range all {
		if !all[i].Removed {
			keys = append(keys, key(all[i].Candidate.Endpoint))
		}
	}
	return keys, nil
}

func key(e *endpick.Endpoint) schemas.Key {
	url := e.Address
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	k := schemas.Key{
		ID: e.ID, Name: e.ID, Models: schemas.WhiteList{"*"}, Weight: 1,
		VLLMKeyConfig: &schemas.VLLMKeyConfig{URL: schemas.SecretVar{Val: url}},
	}
	if len(e.Models)+len(e.Adapters) > 0 {
		k.Models = append(append(schemas.WhiteList(nil), e.Models...), e.Adapters...)
	}
	return k
}
