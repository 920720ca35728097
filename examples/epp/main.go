// Command epp is an endpoint picker for Envoy and the gateways that speak its protocol, to be
// copied; envoy.yaml is the Envoy in front of it, and docs/extproc.md explains both.
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
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/discover"
	"github.com/endpick/endpick/transport/extproc"
	"github.com/endpick/endpick/transport/health"
	"github.com/endpick/endpick/transport/prometheus"
	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// options are the parsed flags.
type options struct {
	policy    string
	listen    string
	source    discover.Source
	plaintext bool
	metrics   string
	picker    extproc.Config // without a router
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
	f.StringVar(&o.metrics, "metrics", "", "serve /metrics for Prometheus on this `address`, for the operator")
	f.IntVar(&o.picker.Dispatcher.Fallbacks, "fallbacks", 2, "servers to name after the chosen one; 0 for gateways that take one address, such as an original_dst cluster")
	f.DurationVar(&o.picker.DrainTimeout, "drain", 30*time.Second, "how long a picker that stops waits for streams, which end with it")
	f.BoolVar(&o.picker.Buffered, "buffered", false, "the gateway sends whole bodies without announcing it")
	f.BoolVar(&o.picker.RequireModel, "require-model", false, "answer 400 if a body names no model")
	f.Func("objective", "`name=priority` of an InferenceObjective, repeatable; clients' x-gateway-inference headers are then trusted", func(v string) error {
		name, priority, _ := strings.Cut(v, "=")
		n, err := strconv.Atoi(priority)
		if o.picker.Objectives == nil {
			o.picker.Objectives = map[string]int{}
		}
		o.picker.Objectives[name] = n
		return err
	})
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case f.NArg() > 0:
		return nil, fmt.Errorf("%q is not a flag", f.Arg(0))
	case (endpoints == "") == (dns == ""):
		return nil, errors.New("-endpoints or -dns says where the servers are")
	case endpoints != "":
		o.source = addresses{discover.File(endpoints)}
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

// addresses is a list of servers without names, which proxies do not take.
type addresses struct{ discover.Source }

// Endpoints implements [discover.Source].
func (s addresses) Endpoints(ctx context.Context) ([]endpick.Endpoint, error) {
	list, err := s.Source.Endpoints(ctx)
	if err != nil {
		return nil, err
	}
	router, err := endpick.New(endpick.Config{Endpoints: list})
	if err == nil {
		_, err = extproc.New(extproc.Config{Dispatcher: transport.Config{Router: router}})
	}
	return list, err
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

// newPicker returns a picker with a policy, its router, and metrics of both.
func newPicker(picker extproc.Config, config endpick.Config, warn func(error)) (*extproc.Server, *endpick.Router, *prometheus.Metrics, error) {
	metrics, err := prometheus.New(prometheus.Config{})
	if err != nil {
		return nil, nil, nil, err
	}
	config.Warn, picker.Warn = warn, warn
	config.Policy.Predictor = metrics.Predictor(config.Policy.Predictor)
	router, err := endpick.New(config)
	if err != nil {
		return nil, nil, nil, err
	}
	monitor, err := health.New(health.Config{Router: router})
	if err != nil {
		return nil, nil, nil, err
	}
	picker.Dispatcher.Router, picker.Dispatcher.Health = router, monitor
	server, err := extproc.New(picker)
	metrics.Watch(prometheus.Sources{Router: router, Health: monitor})
	return server, router, metrics, err
}

// serveMetrics serves the page of metrics in the background, until stop.
func serveMetrics(address string, metrics *prometheus.Metrics, logger *log.Logger) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	registry := prom.NewRegistry()
	registry.MustRegister(metrics)
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	logger.Printf("metrics on %v", l.Addr())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }()
	return func() { _ = server.Close() }, nil
}

// serve is the picker as a server. listening is called with its address, for tests.
func serve(ctx context.Context, o *options, stderr io.Writer, listening func(net.Addr)) error {
	logger := log.New(stderr, "epp: ", log.LstdFlags)
	warn := func(err error) { logger.Print(err) }
	config, err := all.ByName(o.policy)
	if err != nil {
		return err
	}
	server, router, metrics, err := newPicker(o.picker, config, warn)
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
	stopMetrics, err := serveMetrics(o.metrics, metrics, logger)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer stopMetrics()
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
