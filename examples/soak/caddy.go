package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	endpickcaddy "github.com/endpick/endpick/transport/caddy"
)

// throughCaddy is Caddy with endpick's transport. A process can only have one.
func throughCaddy(b *book, engines []*engine) (*way, error) {
	dir, err := os.MkdirTemp("", "soak")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "socket")
	var lines strings.Builder
	lines.WriteString("{\n\tadmin off\n\tpersist_config off\n\tgrace_period 10s\n\tlog {\n\t\toutput discard\n\t}\n}\nhttp:// {\n\tbind unix/" + socket +
		"\n\treverse_proxy {\n\tdynamic endpick\n\ttransport endpick {\n")
	for _, e := range engines {
		fmt.Fprintf(&lines, "\tendpoint %s {\n\tid %s\n\tmodels m\n}\n", e.address, e.id)
	}
	lines.WriteString("}\n}\n}\n")
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(lines.String()), nil)
	if err == nil {
		err = caddy.Load(config, true)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	w := &way{
		name: "Caddy", client: clientOf("unix", socket), url: "http://gateway",
		stop: func() error { return errors.Join(caddy.Stop(), os.RemoveAll(dir)) },
	}
	// The router exists once a request has arrived.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	in, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/v1/models", nil)
	if err != nil {
		return nil, errors.Join(err, w.stop())
	}
	response, err := w.client.Do(in)
	if err != nil {
		return nil, errors.Join(err, w.stop())
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	if w.router = endpickcaddy.Router("default"); w.router == nil {
		return nil, errors.Join(errors.New("Caddy has no router"), w.stop())
	}
	if w.policies, err = policies(b); err == nil {
		err = w.router.SetPolicy(w.policies[0])
	}
	if err != nil {
		return nil, errors.Join(err, w.stop())
	}
	return w, nil
}
