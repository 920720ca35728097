package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/suite"
	endpickcaddy "github.com/endpick/endpick/transport/caddy"
)

// openCaddy opens Caddy with endpick's transport. A process can only have one. Its router
// exists once a request has arrived.
func openCaddy(endpoints []endpick.Endpoint) (*suite.Front, error) {
	dir, err := os.MkdirTemp("", "endpick")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "socket")
	var lines strings.Builder
	lines.WriteString("{\n\tadmin off\n\tpersist_config off\n\tgrace_period 10s\n\tlog {\n\t\toutput discard\n\t}\n}\nhttp:// {\n\tbind unix/" + socket +
		"\n\treverse_proxy {\n\tdynamic endpick\n\ttransport endpick {\n\tpass /\n")
	for _, e := range endpoints {
		fmt.Fprintf(&lines, "\tendpoint %s {\n\tmodels %s\n", e.Address, suite.Model)
		if e.ID != "" {
			fmt.Fprintf(&lines, "\tid %s\n", e.ID)
		}
		lines.WriteString("}\n")
	}
	lines.WriteString("}\n}\n}\n")
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(lines.String()), nil)
	if err == nil {
		err = caddy.Load(config, true)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &suite.Front{
		Network: "unix", Address: socket,
		Router: func() *endpick.Router { return endpickcaddy.Router("default") },
		Close:  func() error { return errors.Join(caddy.Stop(), os.RemoveAll(dir)) },
	}, nil
}
