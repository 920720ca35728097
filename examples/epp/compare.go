package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/traffic"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc/extproctest"
)

// compare plays the same conversations three times, each time with fresh servers, and
// fails unless all went well.
func compare(ctx context.Context, o *options, stdout io.Writer) error {
	conversations := o.Conversations()
	var results []traffic.Result
	streams := 0
	for _, way := range []struct {
		name, policy string
		front        func(*options, string, []endpick.Endpoint) (*front, error)
	}{
		{"picker, round-robin", "round-robin", throughPicker},
		{"picker, " + o.policy, o.policy, throughPicker},
		{"transport, " + o.policy, o.policy, throughTransport},
	} {
		samples, n, err := play(ctx, o, way.policy, way.front, conversations)
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		streams += n
		results = append(results, traffic.Summarise(way.name, samples, endpick.SLO{}))
	}
	if err := traffic.WriteTable(stdout, results); err != nil {
		return err
	}
	return summary(stdout, results, streams)
}

// summary says in a line whether all went well.
func summary(stdout io.Writer, results []traffic.Result, streams int) error {
	robin, picker, direct := results[0], results[1], results[2]
	for _, r := range results {
		if r.Failed > 0 {
			return fmt.Errorf("%s: %d requests failed, the first: %w", r.Policy, r.Failed, r.FirstErr)
		}
		if r.Requests == 0 || r.TTFT == nil || r.PrefixHitRatio == nil {
			return fmt.Errorf("%s: nothing was measured", r.Policy)
		}
	}
	_, err := fmt.Fprintf(stdout, "ok: %d requests over %d streams of the protocol; hit ratio %.3f through the picker, %.3f through transport; "+
		"TTFT p50 %.2f of round-robin's; no lease left\n",
		robin.Requests+picker.Requests+direct.Requests, streams, *picker.PrefixHitRatio, *direct.PrefixHitRatio, picker.TTFT.P50/robin.TTFT.P50)
	return err
}

// front is what clients talk to.
type front struct {
	handler http.Handler
	router  *endpick.Router
	streams atomic.Int64
	stop    func() error
}

// play starts servers and a front, plays the conversations, and takes all down again.
func play(ctx context.Context, o *options, policy string, make func(*options, string, []endpick.Endpoint) (*front, error), conversations []traffic.Conversation) (samples []traffic.Sample, streams int, err error) {
	config, err := traffic.ServerConfig(o.kvTokens)
	if err != nil {
		return nil, 0, err
	}
	fleet, err := traffic.StartFleet(o.servers, config)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, fleet.Close()) }()
	f, err := make(o, policy, fleet.Endpoints())
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, 0, err
	}
	server := &http.Server{Handler: f.handler, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	client := traffic.NewClient("http://" + l.Addr().String())
	defer client.Close()
	samples = client.Play(ctx, conversations, func() {})
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	// A stream may end a moment after its client has all.
	for wait := time.Now().Add(10 * time.Second); f.router.Stats().OpenLeases > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(wait) {
			return nil, 0, fmt.Errorf("%d leases are left open", f.router.Stats().OpenLeases)
		}
	}
	return samples, int(f.streams.Load()), nil
}

// throughPicker is a client that plays Envoy's side before a picker.
func throughPicker(o *options, policy string, endpoints []endpick.Endpoint) (*front, error) {
	var warned atomic.Pointer[error]
	picker, router, err := newPicker(policy, endpoints, func(err error) { warned.CompareAndSwap(nil, &err) })
	if err != nil {
		return nil, err
	}
	certificate, err := selfSigned()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	ctx, drain := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- picker.Serve(ctx, l, grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{certificate}})))
	}()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
	if err != nil {
		drain()
		return nil, errors.Join(err, <-served)
	}
	base := &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true}
	f := &front{router: router}
	proxy := &extproctest.Proxy{Picker: conn, Buffered: o.buffered, Base: base}
	f.handler = &httputil.ReverseProxy{
		Rewrite: func(*httputil.ProxyRequest) {}, // the picker names the target
		Transport: roundTripper(func(in *http.Request) (*http.Response, error) {
			f.streams.Add(1)
			return proxy.RoundTrip(in)
		}),
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // a broken protocol fails its request
	}
	f.stop = func() error {
		conn.Close()
		base.CloseIdleConnections()
		drain()
		err := <-served
		if w := warned.Load(); w != nil {
			err = errors.Join(err, fmt.Errorf("the picker has warned: %w", *w))
		}
		return err
	}
	return f, nil
}

// throughTransport is package transport, with which the picker is compared.
func throughTransport(_ *options, policy string, endpoints []endpick.Endpoint) (*front, error) {
	config, err := preset.ByName(policy)
	if err != nil {
		return nil, err
	}
	config.Endpoints = endpoints
	router, err := endpick.New(config)
	if err != nil {
		return nil, err
	}
	t, err := transport.New(transport.Config{Router: router})
	if err != nil {
		return nil, err
	}
	return &front{
		router:  router,
		handler: &httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}, Transport: t, ErrorHandler: transport.ErrorHandler},
		stop:    func() error { t.CloseIdleConnections(); return nil },
	}, nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(in *http.Request) (*http.Response, error) { return f(in) }
