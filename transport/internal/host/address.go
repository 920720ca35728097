// Package host deals with what hosts configure: the addresses of their servers.
package host

import (
	"errors"
	"net/url"
	"slices"
	"strings"

	"github.com/endpick/endpick"
)

// ErrAddress: the address of an endpoint is neither a host nor a URL.
var ErrAddress = errors.New("transport: the endpoint's address is neither host:port nor an http, https or h2c URL")

// Of is the URL at which the server at an address serves the path and query of in;
// see transport.Target.
func Of(address string, in *url.URL) (*url.URL, error) {
	to, err := Parse(address)
	if err != nil {
		return nil, err
	}
	if err := CheckPath(in); err != nil {
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

// Parse parses an address. The error is ErrAddress.
func Parse(address string) (*url.URL, error) {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	to, err := url.Parse(address)
	if err != nil || to.Hostname() == "" || !slices.Contains(schemes, to.Scheme) {
		return nil, ErrAddress // err would show credentials
	}
	// Before Go 1.26, and with GODEBUG=urlstrictcolons=0, url.Parse accepts any number of colons.
	if !strings.HasPrefix(to.Host, "[") && strings.Count(to.Host, ":") > 1 {
		return nil, ErrAddress
	}
	return to, nil
}

var schemes = []string{"http", "https", "h2c"}

// CheckPath refuses paths with a ".." segment, in whatever encoding: a server
// that resolves it would leave the base path of its address, and no API has
// one.
func CheckPath(in *url.URL) error {
	for segment := range strings.FieldsFuncSeq(in.Path, func(r rune) bool { return r == '/' || r == '\\' }) {
		if segment == ".." {
			return &endpick.RequestError{Field: "path", Reason: "has a segment .."}
		}
	}
	return nil
}

// Page is the URL of a page of the server at an address, for a client that only
// supports http and https; empty if there is none.
func Page(address, path string) string {
	to, err := Of(address, &url.URL{Path: path})
	if err != nil {
		return ""
	}
	to.Scheme = strings.Replace(to.Scheme, "h2c", "http", 1)
	return to.String()
}
