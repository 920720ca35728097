// Command embed is the smallest gateway: a reverse proxy in front of two servers.
package main

import (
	"log"
	"net/http"
	"net/http/httputil"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/transport"
)

func main() {
	config := preset.Default()
	config.Endpoints = []endpick.Endpoint{{Address: "10.0.0.1:8000"}, {Address: "10.0.0.2:8000"}}
	router, err := endpick.New(config)
	if err != nil {
		log.Fatal(err)
	}
	routed, err := transport.New(transport.Config{Router: router})
	if err != nil {
		log.Fatal(err)
	}
	keep := func(*httputil.ProxyRequest) {} // the transport chooses the target
	server := &http.Server{
		Addr: ":8080", ReadHeaderTimeout: 10 * time.Second,
		Handler: &httputil.ReverseProxy{Rewrite: keep, Transport: routed, ErrorHandler: transport.ErrorHandler},
	}
	log.Fatal(server.ListenAndServe())
}
