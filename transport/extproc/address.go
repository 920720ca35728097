package extproc

import (
	"net/netip"
	"net/url"
	"strings"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
)

// hostPort is the address of an endpoint as ip:port. The error is
// [transport.ErrAddress].
func hostPort(e *endpick.Endpoint) (string, error) {
	address, port := e.Address, ""
	if strings.Contains(address, "://") {
		u, err := url.Parse(address)
		if err != nil {
			return "", transport.ErrAddress // err would show credentials
		}
		if address, port = u.Host, "80"; u.Scheme == "https" {
			port = "443"
		}
		if u.Port() == "" {
			address += ":" + port
		}
	}
	if _, err := netip.ParseAddrPort(address); err != nil {
		return "", transport.ErrAddress
	}
	return canonical(address), nil
}

// canonical is an address from the proxy in the form of hostPort; anything else is
// returned as it is, and matches no endpoint.
func canonical(address string) string {
	address = strings.TrimSpace(address)
	if at, err := netip.ParseAddrPort(address); err == nil {
		return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String()
	}
	return address
}
