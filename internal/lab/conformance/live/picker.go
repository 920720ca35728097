package main

import (
	"io"
	"log"
	"net/http"
	"net/http/httputil"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/conformance/extproctest"
	"github.com/endpick/endpick/internal/lab/suite"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/extproc"
)

// openPicker opens a proxy that asks an endpoint picker, using Envoy's protocol.
func openPicker(config endpick.Config, buffered bool) (*suite.Front, error) {
	router, err := endpick.New(config)
	if err != nil {
		return nil, err
	}
	picker, err := extproc.New(extproc.Config{Dispatcher: transport.Config{Router: router, Fallbacks: suite.Fleet - 1, Pass: []string{"/"}}})
	if err != nil {
		return nil, err
	}
	conn, stop, err := extproctest.Start(picker)
	if err != nil {
		return nil, err
	}
	base := &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(*httputil.ProxyRequest) {}, // the picker names the target
		Transport:     &extproctest.Proxy{Picker: conn, Buffered: buffered, RetryOn: []int{502, 503}, Base: base},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	return suite.Serve(proxy, router, func() error {
		base.CloseIdleConnections()
		return stop()
	})
}
