package transport

import (
	"net/url"
	"slices"
	"strings"

	"github.com/endpick/endpick"
)

// Target is the URL at which an endpoint serves path and query of in. An
// Address is "host:port" or a URL of scheme http, https or h2c, with a base path
// or without; anything else is ErrAddress.
func Target(e *endpick.Endpoint, in *url.URL) (*url.URL, error) {
	address := e.Address
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	to, err := url.Parse(address)
	if err != nil || to.Hostname() == "" || !slices.Contains(schemes, to.Scheme) {
		return nil, ErrAddress
	}
	out := *to
	if base := strings.TrimSuffix(to.EscapedPath(), "/"); base == "" {
		out.Path, out.RawPath = in.Path, in.RawPath
	} else {
		out = *out.JoinPath(in.EscapedPath())
	}
	out.RawQuery, out.ForceQuery = in.RawQuery, in.ForceQuery
	return &out, nil
}

var schemes = []string{"http", "https", "h2c"}
