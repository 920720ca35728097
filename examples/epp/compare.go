package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc/extproctest"
)

// compare plays the same conversations three times, each time with new servers, then
// others in step through picker and transport, and fails unless everything went well.
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
	hits, err := traffic.PairHits(ctx, o.Workload, o.pairs, atOnce, o.kvTokens, o.opener(throughPicker), o.opener(throughTransport))
	if err != nil {
		return fmt.Errorf("in step: %w", err)
	}
	return summary(stdout, results, streams, &hits)
}

// atOnce is the number of requests in a step.
const atOnce = 8

// opener returns a function that opens a front to be played in step.
func (o *options) opener(make func(*options, string, []endpick.Endpoint) (*front, error)) traffic.Opener {
	return func(fleet *traffic.Fleet) (*traffic.Front, error) {
		f, err := make(o, traffic.InStepPolicy, fleet.Endpoints())
		if err != nil {
			return nil, err
		}
		client, stop, err := f.listen()
		if err != nil {
			return nil, err
		}
		return &traffic.Front{Client: client, Leases: func() int { return f.router.Stats().OpenLeases }, Stop: stop}, nil
	}
}

// summary says in one line whether everything went well.
func summary(stdout io.Writer, results []traffic.Result, streams int, hits *traffic.Paired) error {
	robin, picker, direct := results[0], results[1], results[2]
	for _, r := range results {
		if r.Failed > 0 {
			return fmt.Errorf("%s: %d requests failed, the first: %w", r.Policy, r.Failed, r.FirstErr)
		}
		if r.Requests == 0 || r.TTFT == nil || r.PrefixHitRatio == nil {
			return fmt.Errorf("%s: nothing was measured", r.Policy)
		}
	}
	inStep := ""
	if len(hits.A) > 0 {
		inStep = "; in step, hits through the picker and through transport: " + hits.String()
		if math.Abs(hits.Typical()) > 0.01 {
			return errors.New("more than a point apart" + inStep)
		}
	}
	_, err := fmt.Fprintf(stdout, "ok: %d requests over %d streams of the protocol; TTFT p50 %.2f of round-robin's; no lease left%s\n",
		robin.Requests+picker.Requests+direct.Requests, streams, picker.TTFT.P50/robin.TTFT.P50, inStep)
	return err
}

// front is what clients connect to.
type front struct {
	handler http.Handler
	router  *endpick.Router
	streams atomic.Int64
	stop    func() error
}

// play starts servers and a front, plays the conversations, and shuts everything down.
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
	client, stop, err := f.listen()
	if err != nil {
		return nil, 0, err
	}
	defer func() { client.Close(); err = errors.Join(err, stop()) }()
	samples = client.Play(ctx, conversations, func() {})
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	// A stream may end a moment after its client has received everything.
	for wait := time.Now().Add(10 * time.Second); f.router.Stats().OpenLeases > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(wait) {
			return nil, 0, fmt.Errorf("%d leases are left open", f.router.Stats().OpenLeases)
		}
	}
	return samples, int(f.streams.Load()), nil
}

// listen serves the front until stop.
func (f *front) listen() (client *traffic.Client, stop func() error, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, errors.Join(err, f.stop())
	}
	server := &http.Server{Handler: f.handler, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }()
	return traffic.NewClient("http://" + l.Addr().String()), func() error { return errors.Join(server.Close(), f.stop()) }, nil
}

// throughPicker is a proxy that plays Envoy's side of a picker's protocol.
func throughPicker(o *options, policy string, endpoints []endpick.Endpoint) (*front, error) {
	var warned atomic.Pointer[error]
	picker, router, err := newPicker(policy, 1, endpoints, func(err error) { warned.CompareAndSwap(nil, &err) })
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
		ErrorLog:      log.New(io.Discard, "", 0), // a protocol violation fails its request
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
	config, err := all.ByName(policy)
	if err != nil {
		return nil, err
	}
	config.Endpoints, config.Seed = endpoints, 1 // as for the picker: ties are broken in the same way
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
