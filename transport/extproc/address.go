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
			return "", transport.ErrAddress // not err: it would show credentials
		}
		if address, port = u.Host, "80"; u.Scheme == "https" {
			port = "443"
		}
		if u.Port() == "" {
			address += ":" + port
		}
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return "", transport.ErrAddress
	}
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String(), nil
}

// canonical is an address of the proxy's as hostPort writes it; what is none stays as
// it is, and is nobody's.
func canonical(address string) string {
	address = strings.TrimSpace(address)
	if at, err := netip.ParseAddrPort(address); err == nil {
		return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String()
	}
	return address
}
