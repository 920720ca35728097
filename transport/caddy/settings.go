package caddy

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/slo/queue"
	"github.com/endpick/endpick/transport"
)

// Endpoint is one inference server; see [endpick.Endpoint].
type Endpoint struct {
	ID      string `json:"id,omitempty"`
	Address string `json:"address"`
	// Models and Adapters are the names that it serves. Empty: everything.
	Models   []string `json:"models,omitempty"`
	Adapters []string `json:"adapters,omitempty"`
	// Variant names its kind of accelerator and runtime.
	Variant string `json:"variant,omitempty"`
	// Engine is what runs there: streams are resumed at those that can continue a text.
	Engine       string            `json:"engine,omitempty"`
	MaxSequences int               `json:"max_sequences,omitempty"`
	KVTokens     int               `json:"kv_tokens,omitempty"`
	MaxInFlight  int               `json:"max_in_flight,omitempty"`
	MaxContext   int               `json:"max_context,omitempty"`
	Tier         int               `json:"tier,omitempty"`
	Weight       float64           `json:"weight,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
}

// Queue holds requests while the servers are full; see [transport.QueueConfig].
type Queue struct {
	// Requests is how many requests it holds at most. Zero: 1000.
	Requests int `json:"requests,omitempty"`
	// Timeout is how long one may wait. Zero: 30 s.
	Timeout caddy.Duration `json:"timeout,omitempty"`
	// Sequences makes a server full when this many of this proxy's requests are in
	// flight there, or its max_sequences if that is set, whatever the server reports.
	// Zero: a server is full when its reports say so; without reports, when its
	// max_sequences are in flight, or 100 if that is not set.
	Sequences int `json:"sequences,omitempty"`
}

// policy is the preset's name, as given or by default.
func (t *Settings) policy() string { return cmp.Or(t.Policy, "marginal-delay") }

// routing is the router's configuration, with state of its own.
func (t *Settings) routing() (endpick.Config, error) {
	config, err := all.ByName(t.policy())
	if err != nil {
		return config, err
	}
	config.Seed = uint64(t.Seed)
	if len(t.Endpoints) == 0 {
		return config, errors.New("endpick: no endpoint is configured")
	}
	for _, e := range t.Endpoints {
		at := endpick.Endpoint{
			ID: e.ID, Address: e.Address, Models: e.Models, Adapters: e.Adapters, Labels: e.Labels,
			Variant: e.Variant, Engine: e.Engine, MaxSequences: e.MaxSequences, KVTokens: e.KVTokens,
			MaxInFlight: e.MaxInFlight, MaxContext: e.MaxContext, Tier: e.Tier, Weight: e.Weight,
		}
		if _, err := transport.Target(&at, new(url.URL)); err != nil {
			return config, err
		}
		config.Endpoints = append(config.Endpoints, at)
	}
	return config, nil
}

// sending is the transport's configuration, without the router and the callbacks.
func (t *Settings) sending() (transport.Config, error) {
	config := transport.Config{
		MaxAttempts: t.MaxAttempts, MaxBodyBytes: t.MaxBodyBytes, SharedCache: t.SharedCache, DisableUsage: t.DisableUsage,
		Pass:             t.Pass,
		FirstByteTimeout: time.Duration(t.FirstByteTimeout), StallTimeout: time.Duration(t.StallTimeout),
		ResponseTimeout: time.Duration(t.ResponseTimeout), UpgradeTimeout: time.Duration(t.UpgradeTimeout),
		EnableEndpointHeader: true, // removed from the response, and made a placeholder
	}
	if t.HashKey != "" {
		key, err := prefix.ParseKey(t.HashKey)
		if err != nil {
			return config, fmt.Errorf("hash_key: %w", err)
		}
		config.HashKey = key
	}
	if q := t.Queue; q != nil {
		config.Queue = &transport.QueueConfig{Bounds: queue.Config{MaxRequests: q.Requests, Timeout: time.Duration(q.Timeout)}}
		if q.Sequences > 0 {
			config.Queue.Saturation = queue.Concurrency(q.Sequences)
		}
	}
	return config, nil
}
