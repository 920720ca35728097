package main

import (
	"errors"
	"log"
	"net/http"
	"net/http/httputil"
	"sync/atomic"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/transport"
)

// gatewayConfig is what a gateway is made of.
type gatewayConfig struct {
	policy    string
	endpoints []endpick.Endpoint
	seed      uint64
	receipts  int                    // how many decisions to keep for the debug page. Zero: no page, no metrics
	queue     *transport.QueueConfig // nil: requests are not held
	// trustHeaders says that whoever sends requests may say in their headers
	// how important they are and whose.
	trustHeaders bool
	log          *log.Logger
}

// gateway is a reverse proxy before model servers. It is an http.Handler.
type gateway struct {
	http.Handler              // for clients
	admin        http.Handler // metrics and the debug page; nil: there are none
	router       *endpick.Router
	transport    *transport.Transport
	index        *prefix.Index    // nil: the policy has none
	latency      *predict.Latency // nil: the policy predicts nothing
	receipts     *receipts        // nil: not kept, and nobody watches
	watch        *watch
	policy       string
	stopping     atomic.Bool // new requests are refused
	stop         func()      // ends the polling
}

// tenantHeader names who pays, in OpenAI's API.
const tenantHeader = "OpenAI-Organization"

func newGateway(config gatewayConfig) (_ *gateway, err error) {
	g := &gateway{policy: config.policy, stop: func() {}}
	c, err := preset.ByName(config.policy)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	c.Endpoints, c.Seed = config.endpoints, config.seed
	g.index, _ = c.Policy.Matcher.(*prefix.Index)
	g.latency, _ = c.Policy.Predictor.(*predict.Latency)
	t := transport.Config{
		Queue: config.queue,
		// Tenants take turns in the queue; the servers share their caches
		// between them.
		SharedCache: true,
		Describe:    g.describe(config.trustHeaders),
	}
	if config.receipts > 0 {
		g.receipts = newReceipts(config.receipts)
		g.watch = &watch{predictor: c.Policy.Predictor, metrics: newMetrics()}
		c.Policy.Predictor, t.Record = g.watch, g.watch.record
	}
	if g.router, err = endpick.New(c); err != nil {
		return nil, err
	}
	t.Router = g.router
	if g.transport, err = transport.New(t); err != nil {
		return nil, err
	}

	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { // the transport sets the target
			r.SetXForwarded()
			if !config.trustHeaders {
				r.Out.Header.Del(transport.PriorityHeader)
				r.Out.Header.Del(transport.SessionHeader)
			}
		},
		Transport:    g.transport,
		ErrorHandler: transport.ErrorHandler,
		ErrorLog:     config.log,
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if g.stopping.Load() {
			transport.ErrorHandler(w, r, &endpick.NoEndpointsError{})
			return
		}
		proxy.ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /readyz", g.ready)
	if g.receipts != nil {
		proxy.Transport = g.receipts.keep(g.transport)
		admin := http.NewServeMux()
		admin.HandleFunc("GET /debug/endpick", g.debug)
		admin.Handle("GET /metrics", g.watch.metrics)
		g.admin = admin
	}
	g.Handler = mux
	stop, err := startPolling(g.router, config.log)
	if err != nil {
		return nil, err
	}
	g.stop = stop
	return g, nil
}

// describe tells the router what the transport does not know.
func (g *gateway) describe(trustHeaders bool) func(*http.Request, []byte, *endpick.Request) {
	return func(in *http.Request, body []byte, req *endpick.Request) {
		if trustHeaders {
			req.Tenant = in.Header.Get(tenantHeader)
		}
		if g.receipts != nil {
			g.receipts.describe(in, body, req)
		}
	}
}

// ready answers 200 while some endpoint takes requests.
func (g *gateway) ready(w http.ResponseWriter, _ *http.Request) {
	if g.stopping.Load() {
		http.Error(w, "the gateway is stopping", http.StatusServiceUnavailable)
		return
	}
	for _, e := range g.router.Endpoints() {
		if !e.Draining && !e.Removed {
			_, _ = w.Write([]byte("ready\n"))
			return
		}
	}
	http.Error(w, "no endpoint takes requests", http.StatusServiceUnavailable)
}

// pending is how many requests wait in the queue or are on their way.
func (g *gateway) pending() int {
	q, _ := g.transport.Queue()
	return q.Requests + g.router.Stats().OpenLeases
}

// close ends what the gateway does on its own.
func (g *gateway) close() error {
	g.stop()
	if g.transport != nil {
		g.transport.CloseIdleConnections()
	}
	return nil
}
