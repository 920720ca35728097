package main

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc"
	"github.com/endpick/endpick/transport/extproc/extproctest"
	"github.com/endpick/endpick/transport/seam"
)

// way is an integration of endpick, in front of all servers.
type way struct {
	name   string
	router *endpick.Router // nil: none
	client *http.Client
	url    string
	stop   func() error
	// policies are given to the router in turn.
	policies []endpick.Policy
	tally    tally
}

// policies are two policies with a common index and a spy. The index is small, so that it
// is full after the warm-up.
func policies(b *book) ([]endpick.Policy, error) {
	index, err := prefix.NewIndex(prefix.IndexConfig{MaxBytes: 1 << 20, BlocksPerEndpoint: 500})
	if err != nil {
		return nil, err
	}
	var all []endpick.Policy
	for _, config := range []endpick.Config{all.LMetric(), all.LoadPrefix(3, 2, 2)} {
		p := config.Policy
		p.Matcher = index
		p.Filters = append(p.Filters[:len(p.Filters):len(p.Filters)], &spy{b})
		all = append(all, p)
	}
	return all, nil
}

func newRouter(b *book, engines []*engine) (*endpick.Router, []endpick.Policy, error) {
	all, err := policies(b)
	if err != nil {
		return nil, nil, err
	}
	config := endpick.Config{Policy: all[0]}
	for _, e := range engines {
		config.Endpoints = append(config.Endpoints, e.endpoint())
	}
	router, err := endpick.New(config)
	return router, all, err
}

func clientOf(network, address string) *http.Client {
	return &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// directly connects to a server that stays, without endpick.
func directly(engines []*engine) *way {
	e := engines[len(engines)-1]
	return &way{name: "directly", client: clientOf("tcp", e.address), url: "http://gateway", stop: func() error { return nil }}
}

// serve makes a way of a handler.
func serve(name string, router *endpick.Router, policies []endpick.Policy, h http.Handler, stop func() error) (*way, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	server := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	return &way{
		name: name, router: router, policies: policies, client: clientOf("tcp", l.Addr().String()), url: "http://gateway",
		stop: func() error {
			err := server.Close()
			<-ended
			return errors.Join(err, stop())
		},
	}, nil
}

func proxyTo(t http.RoundTripper) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: func(*httputil.ProxyRequest) {}, Transport: t, ErrorHandler: transport.ErrorHandler, FlushInterval: -1,
		ErrorLog: log.New(io.Discard, "", 0),
	}
}

func throughReverseProxy(b *book, engines []*engine) (*way, error) {
	router, all, err := newRouter(b, engines)
	if err != nil {
		return nil, err
	}
	t, err := transport.New(transport.Config{Router: router})
	if err != nil {
		return nil, err
	}
	return serve("ReverseProxy", router, all, proxyTo(t), func() error { t.CloseIdleConnections(); return nil })
}

// throughPicker is a proxy that asks an endpoint picker, using Envoy's protocol.
func throughPicker(b *book, engines []*engine) (*way, error) {
	router, all, err := newRouter(b, engines)
	if err != nil {
		return nil, err
	}
	picker, err := extproc.New(extproc.Config{Seam: seam.Config{Router: router, Fallbacks: 2}})
	if err != nil {
		return nil, err
	}
	conn, stop, err := extproctest.Start(picker)
	if err != nil {
		return nil, err
	}
	base := &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true}
	proxy := proxyTo(&extproctest.Proxy{Picker: conn, RetryOn: []int{502, 503}, Base: base})
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	return serve("picker", router, all, proxy, func() error {
		base.CloseIdleConnections()
		return stop()
	})
}

// throughSeam is a gateway that sends requests itself.
func throughSeam(b *book, engines []*engine) (*way, error) {
	router, all, err := newRouter(b, engines)
	if err != nil {
		return nil, err
	}
	s, err := seam.New(seam.Config{Router: router})
	if err != nil {
		return nil, err
	}
	base := &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true}
	return serve("seam", router, all, &sender{s, base}, func() error { base.CloseIdleConnections(); return nil })
}
