package discover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/endpick/endpick"
)

// DNS is a source that looks up the addresses of a name: one server for each A or AAAA
// record, as behind a headless service of Kubernetes. An endpoint's ID is its address,
// so that a server that comes back under the same one is taken for the same.
//
// A resolver that answers with some of many addresses, a different choice each time,
// makes servers come and go with its answers; use SRV records or a file there.
type DNS struct {
	// Name is the name to look up. It must be set.
	Name string
	// Port is where the servers listen.
	Port int
	// Network is "ip4" or "ip6" to use only addresses of that kind. Empty:
	// both.
	Network string
	// Scheme is put before each address: "http", "https" or "h2c". Empty: none.
	Scheme string
	// Resolver is used for lookups. Nil: net.DefaultResolver.
	Resolver *net.Resolver
	// Endpoint holds what all servers have in common, such as Models and Variant; its
	// ID and Address are ignored.
	Endpoint endpick.Endpoint
}

// Endpoints implements [Source].
func (d *DNS) Endpoints(ctx context.Context) ([]endpick.Endpoint, error) {
	addresses, err := orDefault(d.Resolver).LookupNetIP(ctx, cmp.Or(d.Network, "ip"), d.Name)
	if err != nil {
		return nil, notFound(err)
	}
	var hosts []string
	for _, a := range addresses {
		hosts = append(hosts, net.JoinHostPort(a.Unmap().String(), strconv.Itoa(d.Port)))
	}
	return endpoints(hosts, d.Scheme, &d.Endpoint), nil
}

// SRV is a source that looks up the SRV records of a name, such as
// "_http._tcp.models.internal": one server for each target and port. Of records of
// different priority those count that are to be tried first; weights do not count,
// because that is what policies are for. An endpoint's ID is its target and port.
type SRV struct {
	// Name is looked up as it is. It must be set.
	Name string
	// Scheme is put before each address: "http", "https" or "h2c". Empty: none.
	Scheme string
	// Resolver is used for lookups. Nil: net.DefaultResolver.
	Resolver *net.Resolver
	// Endpoint holds what all servers have in common, such as Models and Variant; its
	// ID and Address are ignored.
	Endpoint endpick.Endpoint
}

// Endpoints implements [Source].
func (s *SRV) Endpoints(ctx context.Context) ([]endpick.Endpoint, error) {
	_, records, err := orDefault(s.Resolver).LookupSRV(ctx, "", "", s.Name)
	if err != nil {
		return nil, notFound(err)
	}
	var hosts []string
	for _, r := range records { // sorted by priority
		if r.Priority != records[0].Priority {
			break
		}
		if target := strings.TrimSuffix(r.Target, "."); target != "" { // "." says that there is no such service
			hosts = append(hosts, net.JoinHostPort(target, strconv.Itoa(int(r.Port))))
		}
	}
	return endpoints(hosts, s.Scheme, &s.Endpoint), nil
}

func orDefault(r *net.Resolver) *net.Resolver {
	if r == nil {
		return net.DefaultResolver
	}
	return r
}

// notFound says of a name without records that there are no endpoints.
func notFound(err error) error {
	var bad *net.DNSError
	if errors.As(err, &bad) && bad.IsNotFound {
		return fmt.Errorf("%w: %w", ErrEmpty, err)
	}
	return err
}

// endpoints are those at these hosts, each once.
func endpoints(hosts []string, scheme string, common *endpick.Endpoint) []endpick.Endpoint {
	slices.Sort(hosts)
	hosts = slices.Compact(hosts)
	if scheme != "" {
		scheme += "://"
	}
	list := make([]endpick.Endpoint, len(hosts))
	for i, host := range hosts {
		list[i] = *common
		list[i].ID, list[i].Address = host, scheme+host
	}
	return copied(list)
}
