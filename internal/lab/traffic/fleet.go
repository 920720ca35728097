package traffic

import (
	"errors"
	"fmt"
	"net"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/modelserver"
)

// Fleet is a number of embedded model servers, each on a port of its own.
type Fleet struct {
	config  modelserver.Config
	Members []*Member
}

// Member is one server. It keeps its address over a restart.
type Member struct {
	ID      string
	Address string
	Server  *modelserver.Server // nil: killed
	served  chan error
}

// ServerConfig is a server with the speed of Llama-3.1-8B on an A100 and a KV
// cache of so many tokens.
func ServerConfig(kvTokens int) (modelserver.Config, error) {
	profile, err := engine.ProfileByName("llama-3.1-8b-a100")
	return modelserver.Config{Engine: engine.Config{
		Profile: profile,
		Blocks:  kvTokens / engine.DefaultBlockTokens,
	}}, err
}

// StartFleet starts n servers.
func StartFleet(n int, config modelserver.Config) (*Fleet, error) {
	f := &Fleet{config: config}
	for i := range n {
		m := &Member{ID: fmt.Sprintf("server-%d", i+1), Address: "127.0.0.1:0"}
		f.Members = append(f.Members, m)
		if err := m.Start(config); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return f, nil
}

// Start starts the server, or restarts it after a Kill.
func (m *Member) Start(config modelserver.Config) error {
	l, err := net.Listen("tcp", m.Address)
	if err != nil {
		return err
	}
	server, err := modelserver.New(config)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	m.Address, m.Server, m.served = l.Addr().String(), server, served
	return nil
}

// Kill breaks every connection of the server and drops its cache.
func (m *Member) Kill() error {
	if m.Server == nil {
		return nil
	}
	err := m.Server.Close()
	m.Server = nil
	return errors.Join(err, <-m.served)
}

// Endpoints describes the fleet to a router.
func (f *Fleet) Endpoints() []endpick.Endpoint {
	var all []endpick.Endpoint
	for _, m := range f.Members {
		all = append(all, endpick.Endpoint{
			ID: m.ID, Address: m.Address, Models: []string{modelserver.DefaultModel}, Variant: f.config.Engine.Profile.Name,
			KVTokens: f.config.Engine.Blocks * engine.DefaultBlockTokens,
		})
	}
	return all
}

// Close kills all members.
func (f *Fleet) Close() error {
	var errs []error
	for _, m := range f.Members {
		errs = append(errs, m.Kill())
	}
	return errors.Join(errs...)
}
