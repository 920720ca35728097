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

// DNS is a source that looks up a name: one server for each A or AAAA record, as behind a
// headless service of Kubernetes, or for each target and port of its SRV records. An
// endpoint's ID is its host and port, so a server that returns at the same address counts as
// the same.
//
// If a resolver answers with a different choice of many addresses each time, servers
// come and go with its answers; use SRV records or a file instead.
type DNS struct {
	// Name is the name to look up, as it is. It must be set.
	Name string
	// SRV looks up SRV records, of a name such as "_http._tcp.models.internal". Only the
	// records of the best priority count; weights don't, because that is what policies are
	// for. Port and Network are then ignored.
	SRV bool
	// Port is where the servers listen. It must be set, except with SRV.
	Port int
	// Network is "ip4" or "ip6" to use only addresses of that kind. Empty:
	// both, and the resolver has to answer both questions.
	Network string
	// Scheme is put before each address: "http", "https" or "h2c". Empty: none.
	Scheme string
	// Resolver is used for lookups, as if its StrictErrors were set. Nil: net.DefaultResolver.
	Resolver *net.Resolver
	// Endpoint holds what all servers have in common, such as Models and Variant; its
	// ID and Address are ignored.
	Endpoint endpick.Endpoint
}

// Endpoints implements [Source].
func (d *DNS) Endpoints(ctx context.Context) ([]endpick.Endpoint, error) {
	look := d.addresses
	if d.SRV {
		look = d.services
	}
	r := cmp.Or(d.Resolver, net.DefaultResolver)
	// Otherwise a failure to find addresses of one kind leaves those of the other, or looks like there are none.
	hosts, err := look(ctx, &net.Resolver{PreferGo: r.PreferGo, StrictErrors: true, Dial: r.Dial})
	if err != nil {
		return nil, plain(err)
	}
	return endpoints(hosts, d.Scheme, &d.Endpoint), nil
}

func (d *DNS) addresses(ctx context.Context, r *net.Resolver) (hosts []string, err error) {
	addresses, err := r.LookupNetIP(ctx, cmp.Or(d.Network, "ip"), d.Name)
	for _, a := range addresses {
		hosts = append(hosts, net.JoinHostPort(a.Unmap().String(), strconv.Itoa(d.Port)))
	}
	return hosts, err
}

func (d *DNS) services(ctx context.Context, r *net.Resolver) (hosts []string, err error) {
	_, records, err := r.LookupSRV(ctx, "", "", d.Name)
	for _, r := range records { // sorted by priority
		if r.Priority != records[0].Priority {
			break
		}
		if target := strings.ToLower(strings.TrimSuffix(r.Target, ".")); target != "" { // "." means that there is no such service
			hosts = append(hosts, net.JoinHostPort(target, strconv.Itoa(int(r.Port))))
		}
	}
	return hosts, err
}

// plain turns the error for a name without records into ErrEmpty, and leaves out the port from which was
// asked: it is another each time, and the error would be reported at each poll.
func plain(err error) error {
	var bad *net.DNSError
	if !errors.As(err, &bad) {
		return err
	}
	if from, to, ok := strings.Cut(bad.Err, "->"); ok {
		bad.Err = from[:strings.LastIndexByte(from, ' ')+1] + to
	}
	if bad.IsNotFound {
		return fmt.Errorf("%w: %w", ErrEmpty, err)
	}
	return err
}

// endpoints returns those at these hosts, without duplicates.
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
