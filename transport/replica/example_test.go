package replica_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/health"
	"github.com/endpick/endpick/transport/replica"
	"github.com/nats-io/nats.go"
)

func shared(ctx context.Context, endpoints []endpick.Endpoint, name string) (*transport.Transport, error) {
	key, err := prefix.ParseKey(os.Getenv("HASH_KEY")) // openssl rand -hex 32
	if err != nil {
		return nil, err
	}
	config := preset.Default()
	config.Endpoints = endpoints
	router, err := endpick.New(config)
	if err != nil {
		return nil, err
	}
	monitor, err := health.New(health.Config{Router: router})
	if err != nil {
		return nil, err
	}
	go monitor.Run(ctx)

	shared, err := replica.New(replica.Config{Key: key, Name: name, Health: monitor})
	if err != nil {
		return nil, err
	}
	config.Policy.Admitters = append(config.Policy.Admitters, shared) // last, so that it only sees admitted requests
	if err := router.SetPolicy(config.Policy); err != nil {
		return nil, err
	}
	conn, err := replica.Dial("nats://nats-1:4222,nats://nats-2:4222", nats.UserCredentials("gateway.creds"))
	if err != nil {
		return nil, err
	}
	go shared.Run(ctx, router, replica.NATS(conn, "chat")) // the fleet's name

	return transport.New(transport.Config{Router: router, Health: monitor, HashKey: key})
}

var _ = shared // in docs/replicas.md

// Gateways share a secret; without one, New returns an error.
func ExampleNew() {
	_, err := replica.New(replica.Config{})
	fmt.Println(errors.As(err, new(*endpick.ConfigError)), err)
	// Output:
	// true endpick: config: replica.Config.Key is not set: replicas share the key that prompts are hashed with
}
