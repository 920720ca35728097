package suite

import (
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
)

// Model is the servers' model.
const Model = "m"

// Router configures a router over the servers. Its policy only considers load, and not
// what they hold of prompts, so that three idle servers are tried in random order.
func Router(servers []string) endpick.Config {
	config := all.LMetric()
	for _, address := range servers {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{Address: address, Models: []string{Model}})
	}
	return config
}

// Serve opens a front for a handler. Close waits until its requests have ended, and
// then calls stop.
func Serve(h http.Handler, router *endpick.Router, stop func() error) (*Front, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	var serving sync.WaitGroup
	server := &http.Server{
		ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
			serving.Add(1)
			defer serving.Done()
			h.ServeHTTP(w, in)
		}),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	at := l.Addr().String()
	return &Front{Network: "tcp", Address: at, Router: func() *endpick.Router { return router }, Close: func() error {
		err := server.Close()
		<-ended
		serving.Wait()
		return errors.Join(err, stop())
	}}, nil
}

// ReverseProxy is the standard library's reverse proxy with endpick's transport.
func ReverseProxy() Way {
	return Way{
		Name: "ReverseProxy",
		Open: func(servers []string) (*Front, error) { return OpenReverseProxy(Router(servers)) },
	}
}

// OpenReverseProxy opens the standard library's reverse proxy in front of a router.
func OpenReverseProxy(config endpick.Config) (*Front, error) {
	router, err := endpick.New(config)
	if err != nil {
		return nil, err
	}
	t, err := transport.New(transport.Config{Router: router, Pass: []string{"/"}})
	if err != nil {
		return nil, err
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:      func(*httputil.ProxyRequest) {}, // the transport sets the target
		Transport:    t,
		ErrorHandler: transport.ErrorHandler,
		ErrorLog:     log.New(io.Discard, "", 0),
	}
	return Serve(proxy, router, func() error { t.CloseIdleConnections(); return nil })
}
