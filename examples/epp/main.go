// Command epp is an endpoint picker for Envoy and the gateways that speak its protocol, to be
// copied; docs/extproc.md has the Envoy in front of it.
//
//	go run ./examples/epp -listen :9002 -endpoints servers.txt
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/discover"
	"github.com/endpick/endpick/transport/extproc"
)

// options are the parsed flags.
type options struct {
	policy    string
	listen    string
	source    discover.Source
	plaintext bool
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	var endpoints, dns string
	f := flag.NewFlagSet("epp", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.policy, "policy", "marginal-delay", "policy: "+all.Usage())
	f.StringVar(&o.listen, "listen", ":9002", "serve on this `address` until interrupted")
	f.StringVar(&endpoints, "endpoints", "", "`file` with one ip:port per line, or a list in JSON; changes are followed")
	f.StringVar(&dns, "dns", "", "`name:port` whose addresses are the endpoints; changes are followed")
	f.BoolVar(&o.plaintext, "plaintext", false, "no TLS; otherwise the picker generates its own certificate, as gateways expect")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case f.NArg() > 0:
		return nil, fmt.Errorf("%q is not a flag", f.Arg(0))
	case (endpoints == "") == (dns == ""):
		return nil, errors.New("-endpoints or -dns says where the servers are")
	case endpoints != "":
		o.source = discover.File(endpoints)
	default:
		host, port, err := net.SplitHostPort(dns)
		n, wrong := strconv.ParseUint(port, 10, 16)
		if err = errors.Join(err, wrong); err != nil {
			return nil, fmt.Errorf("-dns: %w", err)
		}
		o.source = &discover.DNS{Name: host, Port: int(n)}
	}
	_, err := all.ByName(o.policy)
	return o, err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stderr))
}

// run is the command without its process. It returns the exit status: 2 for invalid
// arguments, 1 for failures.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	o, err := parse(args, stderr)
	status := 2
	if err == nil {
		status, err = 1, serve(ctx, o, stderr, func(net.Addr) {})
	}
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintf(stderr, "epp: %v\n", err)
	return status
}

// newPicker returns a picker with a policy, and its router.
func newPicker(config endpick.Config, warn func(error)) (*extproc.Server, *endpick.Router, error) {
	config.Warn = warn
	router, err := endpick.New(config)
	if err != nil {
		return nil, nil, err
	}
	server, err := extproc.New(extproc.Config{Dispatcher: transport.Config{Router: router, Fallbacks: 2}, Warn: warn})
	return server, router, err
}

// serve is the picker as a server. listening is called with its address, for tests.
func serve(ctx context.Context, o *options, stderr io.Writer, listening func(net.Addr)) error {
	logger := log.New(stderr, "epp: ", log.LstdFlags)
	warn := func(err error) { logger.Print(err) }
	config, err := all.ByName(o.policy)
	if err != nil {
		return err
	}
	server, router, err := newPicker(config, warn)
	if err != nil {
		return err
	}
	server.SetReady(false) // until it knows endpoints
	watcher, err := discover.New(discover.Config{
		Router: router, Source: o.source, OnError: warn,
		OnChange: func(c discover.Change) {
			logger.Printf("picking among %d endpoints", c.Endpoints)
			server.SetReady(true)
		},
	})
	if err != nil {
		return err
	}
	var secure []grpc.ServerOption
	if !o.plaintext {
		certificate, err := selfSigned()
		if err != nil {
			return err
		}
		secure = append(secure, grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{certificate}})))
	}
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	logger.Printf("listening on %v", l.Addr())
	listening(l.Addr())
	ctx, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		watcher.Run(ctx)
	}()
	defer func() { stop(); <-watched }()
	return server.Serve(ctx, l, secure...)
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
