package caddy

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
)

// Upstreams is the upstream source that goes with [Transport]. It names one
// upstream that is never dialled, because the transport dials the server that
// it has picked.
type Upstreams struct{}

// CaddyModule implements [caddy.Module].
func (Upstreams) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.reverse_proxy.upstreams.endpick", New: func() caddy.Module { return new(Upstreams) }}
}

// UnmarshalCaddyfile implements [caddyfile.Unmarshaler]; there are no settings.
func (*Upstreams) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	if d.NextArg() {
		return d.ArgErr()
	}
	if d.NextBlock(0) {
		return d.Errf("there is nothing to set: %s belongs to transport endpick", d.Val())
	}
	return nil
}

// GetUpstreams implements [reverseproxy.UpstreamSource].
func (*Upstreams) GetUpstreams(*http.Request) ([]*reverseproxy.Upstream, error) {
	return []*reverseproxy.Upstream{{Dial: "endpick:80"}}, nil
}
