package main

import (
	"errors"
	"net"
	"os"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/envoy"
	"github.com/endpick/endpick/internal/lab/suite"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// openPicker opens an Envoy that asks an endpoint picker.
func openPicker(config endpick.Config) (*suite.Front, error) {
	router, err := endpick.New(config)
	if err != nil {
		return nil, err
	}
	picker, err := extproc.New(extproc.Config{Dispatcher: transport.Config{Router: router, Pass: []string{"/"}}})
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g, ended := grpc.NewServer(grpc.Creds(credentials.NewTLS(envoy.TLS()))), make(chan error, 1)
	extprocv3.RegisterExternalProcessorServer(g, picker)
	go func() { ended <- g.Serve(l) }()
	dir, err := os.MkdirTemp("", "envoy")
	if err != nil {
		return nil, err
	}
	at, stop, err := envoy.Run(dir, envoy.OneAddress, l.Addr().String(), nil, "timeout: 10s", "timeout: 3600s")
	closed := func() error {
		if stop != nil {
			stop()
		}
		g.Stop()
		return errors.Join(<-ended, os.RemoveAll(dir))
	}
	if err != nil {
		return nil, errors.Join(err, closed())
	}
	return &suite.Front{Network: "tcp", Address: at, Router: func() *endpick.Router { return router }, Close: closed}, nil
}
