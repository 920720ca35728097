package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log"
	"math/big"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport/discover"
	"github.com/endpick/endpick/transport/extproc"
	"github.com/endpick/endpick/transport/seam"
)

// newPicker returns a picker with a policy, and its router. A seed of zero is a random
// one.
func newPicker(policy string, seed uint64, endpoints []endpick.Endpoint, warn func(error)) (*extproc.Server, *endpick.Router, error) {
	config, err := all.ByName(policy)
	if err != nil {
		return nil, nil, err
	}
	config.Endpoints, config.Warn, config.Seed = endpoints, warn, seed
	router, err := endpick.New(config)
	if err != nil {
		return nil, nil, err
	}
	server, err := extproc.New(extproc.Config{Seam: seam.Config{Router: router, Fallbacks: 2}, Warn: warn})
	return server, router, err
}

// serve is the picker as a server. listening is called with its address, for tests.
func serve(ctx context.Context, o *options, stderr io.Writer, listening func(net.Addr)) error {
	logger := log.New(stderr, "epp: ", log.LstdFlags)
	warn := func(err error) { logger.Print(err) }
	server, router, err := newPicker(o.policy, 0, nil, warn)
	if err != nil {
		return err
	}
	server.SetReady(false) // until it knows endpoints
	watcher, err := discover.New(discover.Config{
		Router: router, Source: o.source(), OnError: warn,
		OnChange: func(c discover.Change) {
			logger.Printf("picking among %d endpoints", c.Endpoints)
			server.SetReady(true)
		},
	})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	logger.Printf("listening on %v", l.Addr())
	if listening != nil {
		listening(l.Addr())
	}
	ctx, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		watcher.Run(ctx)
	}()
	defer func() { stop(); <-watched }()
	var secure []grpc.ServerOption
	if !o.plaintext {
		certificate, err := selfSigned()
		if err != nil {
			return err
		}
		secure = append(secure, grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{certificate}})))
	}
	return server.Serve(ctx, l, secure...)
}

// source is where the endpoints come from.
func (o *options) source() discover.Source {
	if o.dns == "" {
		return &discover.File{Path: o.endpoints}
	}
	host, port, _ := net.SplitHostPort(o.dns) // validated by parse
	n, _ := strconv.Atoi(port)
	return &discover.DNS{Name: host, Port: n}
}

// selfSigned is a self-signed certificate. Gateways encrypt the connection to
// their picker, and do not verify who it is.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "endpick"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
