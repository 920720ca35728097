package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
)

// keptReceipts is how many decisions the debug page shows.
const keptReceipts = 20

// serve is a gateway until the context ends. Then it takes no more requests
// and lets those in flight end, for o.grace at most.
func serve(ctx context.Context, o *options, stderr io.Writer) (err error) {
	logger := log.New(stderr, "gateway: ", log.LstdFlags)
	var list *listed
	if o.backendFile != "" {
		list = &listed{path: o.backendFile}
	}
	endpoints, stop, err := backends(o, list)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	g, err := newGateway(gatewayConfig{
		policy: o.policy, endpoints: endpoints, seed: o.seed, receipts: keptReceipts, queue: o.hold(), trustHeaders: o.trust, log: logger,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	if list != nil {
		go list.follow(ctx, g.router, logger)
	}
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	defer l.Close()
	admin, err := net.Listen("tcp", o.admin)
	if err != nil {
		return err
	}
	for _, e := range endpoints {
		to, err := transport.Target(&e, &url.URL{})
		if err != nil {
			return err
		}
		to.User = nil // what it has of credentials is for the server alone
		logger.Printf("endpoint %s at %s", e.ID, to)
	}
	logger.Printf("decisions at http://%s/debug/endpick, metrics at /metrics there", admin.Addr())
	logger.Printf("%s routing on http://%s", o.policy, l.Addr())

	server := &http.Server{Handler: g, ReadHeaderTimeout: 10 * time.Second, ErrorLog: logger}
	pages := &http.Server{Handler: g.admin, ReadHeaderTimeout: 10 * time.Second, ErrorLog: logger}
	defer pages.Close()
	served := make(chan error, 2)
	go func() { served <- server.Serve(l) }()
	go func() { served <- pages.Serve(admin) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	return g.shutdown(server, o.grace, logger)
}

// shutdown waits for the requests that are held or in flight, for grace at most,
// and stops the server. Until then others are refused and /readyz says so: a load
// balancer gets to know.
func (g *gateway) shutdown(server *http.Server, grace time.Duration, logger *log.Logger) error {
	g.stopping.Store(true)
	logger.Printf("stopping; %d requests may take %v to end", g.pending(), grace)
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for g.pending() > 0 && ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	if err := server.Shutdown(ctx); err != nil {
		cut := g.pending()
		return errors.Join(fmt.Errorf("%d requests were cut off after %v", cut, grace), server.Close())
	}
	return nil
}

// backends are the endpoints that the flags or a list name, or embedded servers,
// which stop takes down.
func backends(o *options, list *listed) (endpoints []endpick.Endpoint, stop func() error, err error) {
	if list != nil {
		endpoints, err = list.changed()
		return endpoints, func() error { return nil }, err
	}
	if len(o.backends) == 0 {
		config, err := serverConfig(o.kvTokens)
		if err != nil {
			return nil, nil, err
		}
		f, err := startFleet(o.endpoints, config)
		if err != nil {
			return nil, nil, err
		}
		return f.endpoints(), f.close, nil
	}
	return named(o.backends), func() error { return nil }, nil
}
