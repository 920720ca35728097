package transport

import (
	"net/url"
	"slices"
	"strings"

	"github.com/endpick/endpick"
)

// Target is the URL at which an endpoint serves the path and query of in. An
// Address is "host:port" or a URL of scheme http, https or h2c, with a base
// path or without; anything else is ErrAddress. A path of in that could climb
// out of the base path is an [endpick.RequestError].
//
// A name and a password in the Address are for the server alone: they are in the
// URL returned, and a [Transport] sends them as Basic authorization in place of
// the client's.
func Target(e *endpick.Endpoint, in *url.URL) (*url.URL, error) {
	to, err := parseAddress(e.Address)
	if err != nil {
		return nil, err
	}
	if err := checkPath(in); err != nil {
		return nil, err
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

func parseAddress(address string) (*url.URL, error) {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	to, err := url.Parse(address)
	if err != nil || to.Hostname() == "" || !slices.Contains(schemes, to.Scheme) {
		return nil, ErrAddress // not err: it would show credentials
	}
	return to, nil
}

var schemes = []string{"http", "https", "h2c"}

// checkPath refuses paths with a segment "..", however it is escaped: a server
// that resolves them would leave the base path of its address, and no API has
// one.
func checkPath(in *url.URL) error {
	for segment := range strings.FieldsFuncSeq(in.Path, func(r rune) bool { return r == '/' || r == '\\' }) {
		if segment == ".." {
			return &endpick.RequestError{Field: "path", Reason: "has a segment .."}
		}
	}
	return nil
}
