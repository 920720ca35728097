package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/envoy"
	"github.com/endpick/endpick/internal/lab/suite"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset/all"
)

// way is an integration of endpick, in front of all servers.
type way struct {
	name   string
	router *endpick.Router // nil: none
	client *http.Client
	stop   func() error
	// policies are given to the router in turn.
	policies []endpick.Policy
	tally    tally
}

// behind is the URL of every way; its client knows the address.
const behind = "http://gateway"

func newWay(name, network, address string, stop func() error) *way {
	return &way{name: name, stop: stop, client: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// directly connects to a server that is never taken away, without endpick.
func directly(servers []*server) *way {
	return newWay("directly", "tcp", servers[len(servers)-1].address, func() error { return nil })
}

// openWays opens all that contains endpick.
func openWays(b *book, endpoints []endpick.Endpoint) (ways []*way, err error) {
	type opened struct {
		name string
		open func(endpick.Config) (*suite.Front, error)
	}
	fronts := []opened{
		{"ReverseProxy", suite.OpenReverseProxy},
		{"Caddy", func(c endpick.Config) (*suite.Front, error) { return openCaddy(c.Endpoints) }},
		{"dispatcher", openSender},
	}
	if os.Getenv(envoy.Program) != "" {
		fronts = append(fronts, opened{"Envoy", openPicker})
	}
	for _, one := range fronts {
		c := all.LMetric()
		c.Endpoints = endpoints
		front, err := one.open(c)
		if err != nil {
			return ways, err
		}
		w := newWay(one.name, front.Network, front.Address, front.Close)
		ways = append(ways, w)
		if err := w.take(front, b); err != nil {
			return ways, fmt.Errorf("%s: %w", one.name, err)
		}
	}
	return ways, nil
}

// take takes over the way's router, which may not exist before a request has arrived.
func (w *way) take(front *suite.Front, b *book) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	in, err := http.NewRequestWithContext(ctx, http.MethodGet, behind+"/v1/models", nil)
	if err != nil {
		return err
	}
	response, err := w.client.Do(in)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	if w.router = front.Router(); w.router == nil {
		return errors.New("it has no router")
	}
	if w.policies, err = policies(b); err != nil {
		return err
	}
	return w.router.SetPolicy(w.policies[0])
}

// policies are two policies with a common index and a witness. The index is small, so that
// it is full after the warm-up.
func policies(b *book) ([]endpick.Policy, error) {
	index, err := prefix.NewIndex(prefix.IndexConfig{MaxBytes: 1 << 20, BlocksPerEndpoint: 500})
	var both []endpick.Policy
	for _, name := range []string{"lmetric", "load-prefix"} {
		config, err := all.ByName(name)
		if err != nil {
			return nil, err
		}
		p := config.Policy
		p.Matcher = index
		p.Filters = append(p.Filters[:len(p.Filters):len(p.Filters)], &witness{b})
		both = append(both, p)
	}
	return both, err
}
