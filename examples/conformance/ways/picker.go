package main

import (
	"io"
	"log"
	"net/http"
	"net/http/httputil"

	"github.com/endpick/endpick/internal/lab/suite"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc"
	"github.com/endpick/endpick/transport/extproc/extproctest"
)

// throughPicker is a proxy that asks an endpoint picker, using Envoy's protocol.
func throughPicker(buffered bool) suite.Way {
	w := suite.Way{Name: "picker", About: "the endpoint picker, `FULL_DUPLEX_STREAMED`"}
	if buffered {
		const endless = "an Envoy that buffers a body waits for its end, which an upgraded connection does not have: set the body modes of such routes to `NONE`"
		w = suite.Way{
			Name: "picker, buffered", About: "the endpoint picker, `BUFFERED`", Buffers: true,
			Without: map[string]string{"upgrade": endless, "upgrade, refused": endless},
		}
	}
	w.Open = func(servers []string) (*suite.Front, error) { return openPicker(servers, buffered) }
	return w
}

func openPicker(servers []string, buffered bool) (*suite.Front, error) {
	router, err := suite.Router(servers)
	if err != nil {
		return nil, err
	}
	picker, err := extproc.New(extproc.Config{Dispatcher: transport.Config{Router: router, Fallbacks: suite.Fleet - 1}})
	if err != nil {
		return nil, err
	}
	conn, stop, err := extproctest.Start(picker)
	if err != nil {
		return nil, err
	}
	base := &http.Transport{DisableCompression: true}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(*httputil.ProxyRequest) {}, // the picker names the target
		Transport:     &extproctest.Proxy{Picker: conn, Buffered: buffered, RetryOn: []int{502, 503}, Base: base},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	return suite.Serve(proxy, suite.Leases(router), func() error {
		base.CloseIdleConnections()
		return stop()
	})
}
