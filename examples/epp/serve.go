package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/transport/extproc"
	"github.com/endpick/endpick/transport/seam"
)

// newPicker is a picker and its router, which prefers by a policy.
func newPicker(policy string, endpoints []endpick.Endpoint, warn func(error)) (*extproc.Server, *endpick.Router, error) {
	config, err := preset.ByName(policy)
	if err != nil {
		return nil, nil, err
	}
	config.Endpoints, config.Warn = endpoints, warn
	router, err := endpick.New(config)
	if err != nil {
		return nil, nil, err
	}
	server, err := extproc.New(extproc.Config{Seam: seam.Config{Router: router, Fallbacks: 2}, Warn: warn})
	return server, router, err
}

// serve is the picker on its own. listening hears of its address, for tests.
func serve(ctx context.Context, o *options, stderr io.Writer, listening func(net.Addr)) error {
	logger := log.New(stderr, "epp: ", log.LstdFlags)
	server, router, err := newPicker(o.policy, nil, func(err error) { logger.Print(err) })
	if err != nil {
		return err
	}
	if err := refresh(ctx, o, router); err != nil {
		return err
	}
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	logger.Printf("picking among %d endpoints on %v", router.Stats().Endpoints, l.Addr())
	if listening != nil {
		listening(l.Addr())
	}
	go follow(ctx, o, router, logger)
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

// follow keeps the router's endpoints to the file or the name. What can't be read or
// used changes nothing.
func follow(ctx context.Context, o *options, router *endpick.Router, logger *log.Logger) {
	every := time.Second
	if o.dns != "" {
		every = 10 * time.Second
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := refresh(ctx, o, router); err != nil {
				logger.Print(err)
			}
		}
	}
}

// refresh reads the endpoints.
func refresh(ctx context.Context, o *options, router *endpick.Router) error {
	var addresses []string
	if o.dns != "" {
		host, port, err := net.SplitHostPort(o.dns)
		if err != nil {
			return err
		}
		found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return err
		}
		for _, ip := range found {
			addresses = append(addresses, net.JoinHostPort(ip.Unmap().String(), port))
		}
	} else {
		text, err := os.ReadFile(o.endpoints)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if line, _, _ = strings.Cut(line, "#"); strings.TrimSpace(line) != "" {
				addresses = append(addresses, strings.TrimSpace(line))
			}
		}
	}
	endpoints := make([]endpick.Endpoint, len(addresses))
	for i, address := range addresses {
		if _, err := net.ResolveTCPAddr("tcp", address); err != nil {
			return fmt.Errorf("endpoint %q: %w", address, err)
		}
		endpoints[i] = endpick.Endpoint{Address: address}
	}
	return router.SetEndpoints(endpoints)
}

// selfSigned is a certificate that nobody vouches for. Gateways encrypt the way to
// their picker and do not ask who it is.
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
