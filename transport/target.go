package transport

import (
	"net/url"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/host"
)

// Target is the URL at which an endpoint serves the path and query of in. An
// Address is "host:port" or a URL of scheme http, https or h2c, with a base
// path or without; anything else is ErrAddress. A path of in that could climb
// out of the base path is an [endpick.RequestError].
//
// A name and a password in the Address are for the server alone: they are in the
// URL returned, and a [Transport] sends them as Basic authorization in place of
// the client's.
func Target(e *endpick.Endpoint, in *url.URL) (*url.URL, error) { return host.Of(e.Address, in) }
