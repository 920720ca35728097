package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/endpick/endpick/internal/lab/suite"
	endpickcaddy "github.com/endpick/endpick/transport/caddy"
)

// throughCaddy is Caddy with endpick's transport. A process can only have one.
func throughCaddy() suite.Way {
	return suite.Way{Name: "Caddy", About: "`reverse_proxy` with `transport endpick`", Open: openCaddy}
}

func openCaddy(servers []string) (*suite.Front, error) {
	dir, err := os.MkdirTemp("", "ways")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "socket")
	var lines strings.Builder
	lines.WriteString("{\n\tadmin off\n\tpersist_config off\n\tgrace_period 10s\n\tlog {\n\t\toutput discard\n\t}\n}\nhttp:// {\n\tbind unix/" + socket +
		"\n\treverse_proxy {\n\tdynamic endpick\n\ttransport endpick {\n")
	for _, address := range servers {
		lines.WriteString("\tendpoint " + address + " {\n\tmodels " + suite.Model + "\n}\n")
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
		Leases: func() int {
			router := endpickcaddy.Router("default")
			if router == nil { // no request has arrived yet
				return 0
			}
			return int(router.Stats().OpenLeases)
		},
		Close: func() error { return errors.Join(caddy.Stop(), os.RemoveAll(dir)) },
	}, nil
}
