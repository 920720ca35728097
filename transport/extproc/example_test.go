package extproc_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

func pick(ctx context.Context, config endpick.Config, tlsConfig *tls.Config) error {
	router, err := endpick.New(config) // a preset, with endpoints whose Address is an IP and a port
	if err != nil {
		return err
	}
	server, err := extproc.New(extproc.Config{Dispatcher: transport.Config{Router: router, Fallbacks: 2}})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", ":9002")
	if err != nil {
		return err
	}
	return server.Serve(ctx, listener, grpc.Creds(credentials.NewTLS(tlsConfig)))
}

var _ = pick // in docs/extproc.md

// A picker needs endpoints with an IP and a port, since its protocol does.
func ExampleNew() {
	config := preset.Default()
	config.Endpoints = []endpick.Endpoint{{ID: "gpu-0", Address: "models.internal:8000"}}
	router, err := endpick.New(config)
	if err != nil {
		panic(err)
	}
	_, err = extproc.New(extproc.Config{Dispatcher: transport.Config{Router: router}})
	fmt.Println(errors.As(err, new(*endpick.ConfigError)), err)
	// Output: true endpick: config: extproc.Config.Dispatcher.Router has endpoint "gpu-0" whose address is not an IP and a port
}
