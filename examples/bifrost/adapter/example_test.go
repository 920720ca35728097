package adapter_test

import (
	"context"
	"fmt"

	bifrost "github.com/maximhq/bifrost/core"
	"github.com/maximhq/bifrost/core/schemas"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/examples/bifrost/adapter"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/transport"
)

// begin starts a Bifrost in which endpick chooses the servers. Plugins of the
// program's own come before the adapter.
func begin(ctx context.Context, config endpick.Config, logger schemas.Logger, plugins ...schemas.LLMPlugin) (*bifrost.Bifrost, error) {
	router, err := endpick.New(config) // a preset, with an endpoint for each server
	if err != nil {
		return nil, err
	}
	a, err := adapter.New(adapter.Config{Config: transport.Config{Router: router}})
	if err != nil {
		return nil, err
	}
	return bifrost.Init(ctx, schemas.BifrostConfig{
		Account:     &adapter.Account{Router: router}, // with a key for each endpoint, as they come and go
		KeySelector: a.SelectKey,
		LLMPlugins:  append(plugins, a), // the adapter comes last
		Logger:      logger,
	})
}

func Example() {
	config := preset.Default()
	config.Endpoints = []endpick.Endpoint{{Address: "http://10.0.0.1:8000"}, {Address: "http://10.0.0.2:8000"}}
	b, err := begin(context.Background(), config, bifrost.NewNoOpLogger())
	if err != nil {
		panic(err)
	}
	b.Shutdown()
	fmt.Println("ready")
	// Output: ready
}
