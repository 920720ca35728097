package main

import (
	"errors"
	"fmt"
	"net"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/engine"
	"github.com/endpick/endpick/internal/modelserver"
)

// fleet is a number of embedded model servers, each on a port of its own.
type fleet struct {
	config  modelserver.Config
	members []*member
}

// member is one server. It keeps its address over a restart.
type member struct {
	id      string
	address string
	server  *modelserver.Server // nil: killed
	served  chan error
}

// serverConfig is a server with the speed of Llama-3.1-8B on an A100 and a KV
// cache of so many tokens.
func serverConfig(kvTokens int) (modelserver.Config, error) {
	profile, err := engine.ProfileByName("llama-3.1-8b-a100")
	return modelserver.Config{Engine: engine.Config{
		Profile: profile,
		Blocks:  kvTokens / engine.DefaultBlockTokens,
	}}, err
}

func startFleet(n int, config modelserver.Config) (*fleet, error) {
	f := &fleet{config: config}
	for i := range n {
		m := &member{id: fmt.Sprintf("server-%d", i+1), address: "127.0.0.1:0"}
		f.members = append(f.members, m)
		if err := m.start(config); err != nil {
			return nil, errors.Join(err, f.close())
		}
	}
	return f, nil
}

func (m *member) start(config modelserver.Config) error {
	l, err := net.Listen("tcp", m.address)
	if err != nil {
		return err
	}
	server, err := modelserver.New(config)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	m.address, m.server, m.served = l.Addr().String(), server, served
	return nil
}

// kill breaks every connection of the server and forgets its cache.
func (m *member) kill() error {
	if m.server == nil {
		return nil
	}
	err := errors.Join(m.server.Close(), <-m.served)
	m.server = nil
	return err
}

// endpoints describes the fleet to a router.
func (f *fleet) endpoints() []endpick.Endpoint {
	var all []endpick.Endpoint
	for _, m := range f.members {
		all = append(all, endpick.Endpoint{
			ID: m.id, Address: m.address, Models: []string{modelserver.DefaultModel}, Variant: f.config.Engine.Profile.Name,
			KVTokens: f.config.Engine.Blocks * engine.DefaultBlockTokens,
		})
	}
	return all
}

func (f *fleet) close() error {
	var errs []error
	for _, m := range f.members {
		errs = append(errs, m.kill())
	}
	return errors.Join(errs...)
}
