package main

import (
	"log"
	"net/http"
	"net/http/httputil"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/transport"
)

// gatewayConfig is what a gateway is made of.
type gatewayConfig struct {
	policy    string
	endpoints []endpick.Endpoint
	seed      uint64
	receipts  int // how many decisions to keep for the debug page. Zero: none
	log       *log.Logger
}

// gateway is a reverse proxy before model servers. It is an http.Handler.
type gateway struct {
	http.Handler
	router    *endpick.Router
	transport *transport.Transport
	index     *prefix.Index // nil: the policy has none
	receipts  *receipts     // nil: not kept
	policy    string
	stop      func() // ends the polling
}

func newGateway(config gatewayConfig) (*gateway, error) {
	g := &gateway{policy: config.policy}
	c, err := preset.ByName(config.policy)
	if err != nil {
		return nil, err
	}
	c.Endpoints, c.Seed = config.endpoints, config.seed
	g.index, _ = c.Policy.Matcher.(*prefix.Index)
	if g.router, err = endpick.New(c); err != nil {
		return nil, err
	}
	t := transport.Config{Router: g.router}
	if config.receipts > 0 {
		g.receipts = newReceipts(config.receipts)
		t.Describe = g.receipts.describe
	}
	if g.transport, err = transport.New(t); err != nil {
		return nil, err
	}

	proxy := &httputil.ReverseProxy{
		// The transport sets the target.
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetXForwarded() },
		Transport:    g.transport,
		ErrorHandler: transport.ErrorHandler,
		ErrorLog:     config.log,
	}
	mux := http.NewServeMux()
	mux.Handle("/", proxy)
	mux.HandleFunc("GET /readyz", g.ready)
	if g.receipts != nil {
		proxy.Transport = g.receipts.keep(g.transport)
		mux.HandleFunc("GET /debug/endpick", g.debug)
	}
	g.Handler = mux
	g.stop, err = startPolling(g.router, config.log)
	return g, err
}

// ready answers 200 while some endpoint takes requests.
func (g *gateway) ready(w http.ResponseWriter, _ *http.Request) {
	for _, e := range g.router.Endpoints() {
		if !e.Draining && !e.Removed {
			_, _ = w.Write([]byte("ready\n"))
			return
		}
	}
	http.Error(w, "no endpoint takes requests", http.StatusServiceUnavailable)
}

// close ends what the gateway does on its own.
func (g *gateway) close() {
	g.stop()
	g.transport.CloseIdleConnections()
}
