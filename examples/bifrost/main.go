// Bifrost is a small gateway over Bifrost's core in which endpick chooses the servers.
//
//	GOWORK=off go run . -listen :8080 http://a:8000 http://b:8000
//
// What a program that embeds Bifrost copies is the [Adapter], with everything but main.go and
// gateway.go; start shows how the two are put together.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/transport"
	bifrost "github.com/maximhq/bifrost/core"
	"github.com/maximhq/bifrost/core/schemas"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	listen := flag.String("listen", ":8080", "the `address` of the gateway")
	flag.Parse()
	if err := serve(ctx, *listen, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "bifrost:", err)
		os.Exit(1)
	}
}

// serve is the gateway.
func serve(ctx context.Context, listen string, servers []string) error {
	config := preset.Default()
	for _, address := range servers {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{Address: address})
	}
	b, err := start(ctx, config)
	if err != nil {
		return err
	}
	defer b.Shutdown()
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: &gateway{b}, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// start starts a Bifrost in which endpick chooses the servers. Plugins of the program's own come
// before the adapter.
func start(ctx context.Context, config endpick.Config, plugins ...schemas.LLMPlugin) (*bifrost.Bifrost, error) {
	router, err := endpick.New(config) // a preset, with an endpoint for each server
	if err != nil {
		return nil, err
	}
	a, err := NewAdapter(AdapterConfig{Config: transport.Config{Router: router}})
	if err != nil {
		return nil, err
	}
	return bifrost.Init(ctx, schemas.BifrostConfig{
		Account:     &Account{Router: router}, // with a key for each endpoint, as they come and go
		KeySelector: a.SelectKey,
		LLMPlugins:  append(plugins, a), // the adapter comes last
		Logger:      bifrost.NewNoOpLogger(),
	})
}
