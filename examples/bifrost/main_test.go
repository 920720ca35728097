package main

import (
	"flag"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
	bifrost "github.com/maximhq/bifrost/core"
	"github.com/maximhq/bifrost/core/schemas"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var duration = flag.Duration("duration", 500*time.Millisecond, "how long conversations start in TestBifrost, for each way of choosing")

// In Bifrost all requests are served, as many prompts are in the caches as with the library's own
// transport, and no lease stays open. With the flag, go test -v prints a comparison with Bifrost's
// own choice that takes two minutes, in which endpick's median TTFT is at most a quarter of it:
//
//	GOWORK=off go test -v -run TestBifrost . -duration 20s
func TestBifrost(t *testing.T) {
	with := func(policy string) traffic.Opener {
		return func(f *traffic.Fleet) (*traffic.Front, error) { return front(t, f, policy) }
	}
	results, hits, text, err := traffic.Contest(t.Context(), traffic.ContestWorkload(*duration), []traffic.Way{
		{Name: "Bifrost, random", Open: with("")},
		{Name: "Bifrost, endpick", Open: with("marginal-delay")},
		{Name: "endpick, no Bifrost", Open: traffic.Direct("marginal-delay")},
	}, with(traffic.OneByOne), traffic.Direct(traffic.OneByOne))
	require.NoError(t, err)
	t.Log("\n" + text)
	assert.InDelta(t, hits[1], hits[0], 0.01)
	if *duration >= 10*time.Second { // which one is faster takes a while to say
		assert.LessOrEqual(t, results[1].TTFT.P50, results[0].TTFT.P50/4)
	}
}

// front is a Bifrost in front of the servers, with a policy or, if it is empty, its own choice.
func front(t *testing.T, f *traffic.Fleet, policy string) (*traffic.Front, error) {
	name := policy
	if policy == "" {
		name = "round-robin" // the router then only lists the servers
	}
	config := rig.Must(all.ByName(name))
	config.Endpoints, config.Seed = f.Endpoints(), 1
	router := rig.Must(endpick.New(config))
	c := schemas.BifrostConfig{Account: &Account{Router: router}, Logger: bifrost.NewNoOpLogger(), InitialPoolSize: 100}
	if policy != "" {
		a := rig.Must(NewAdapter(AdapterConfig{Config: transport.Config{Router: router}}))
		c.KeySelector, c.LLMPlugins = a.SelectKey, []schemas.LLMPlugin{a}
	}
	b := rig.Must(bifrost.Init(t.Context(), c))
	return traffic.Serve(&gateway{b}, router, func() error { b.Shutdown(); return nil })
}

func TestStart(t *testing.T) {
	config := preset.Default()
	config.Endpoints = []endpick.Endpoint{{Address: "http://10.0.0.1:8000"}, {Address: "http://10.0.0.2:8000"}}
	b := rig.Must(start(t.Context(), config))
	b.Shutdown()
	require.Error(t, rig.Err(start(t.Context(), endpick.Config{Seed: 1, Endpoints: []endpick.Endpoint{{ID: "a"}, {ID: "a"}}})))
}
