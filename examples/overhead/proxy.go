package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/cputime"
	"github.com/endpick/endpick/scorer/preset"
	"github.com/endpick/endpick/transport"
	"github.com/endpick/endpick/transport/recording"
)

// newProxy returns a proxy; the kinds differ only in the transport.
func newProxy(kind string, backend *url.URL, record bool) (*httputil.ReverseProxy, error) {
	p := &httputil.ReverseProxy{FlushInterval: -1, ErrorLog: log.New(os.Stderr, "overhead: "+kind+": ", 0)}
	switch kind {
	case "plain":
		base := http.DefaultTransport.(*http.Transport).Clone()
		base.MaxIdleConnsPerHost = 4096
		base.DisableCompression = true
		p.Transport = base
		p.Rewrite = func(r *httputil.ProxyRequest) { r.SetURL(backend) }
	case "endpick":
		config, err := preset.ByName("lmetric")
		if err != nil {
			return nil, err
		}
		config.Endpoints = []endpick.Endpoint{{ID: "engine", Address: backend.Host}}
		router, err := endpick.New(config)
		if err != nil {
			return nil, err
		}
		to := transport.Config{Router: router}
		if record {
			to.Record = func(recording.Request) {}
		}
		t, err := transport.New(to)
		if err != nil {
			return nil, err
		}
		p.Transport = t
		p.Rewrite = func(*httputil.ProxyRequest) {}
		p.ErrorHandler = transport.ErrorHandler
	default:
		return nil, fmt.Errorf("there is no proxy %q", kind)
	}
	return p, nil
}

// usedPath is where a proxy reports the CPU time of its process.
const usedPath = "/used"

// serveProxy is a proxy's process. It writes its address, and lives until its
// input ends, as it does when the parent process ends for any reason.
func serveProxy(o *options, input io.Reader, output io.Writer) error {
	to, err := url.Parse(o.backend)
	if err != nil {
		return err
	}
	p, err := newProxy(o.proxy, to, o.record)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == usedPath {
			runtime.GC() // so that each pays for its own garbage
			fmt.Fprint(w, int64(cputime.Used()))
			return
		}
		// Otherwise the server may close the body before the proxy has read its end.
		_ = http.NewResponseController(w).EnableFullDuplex()
		p.ServeHTTP(w, r)
	})}
	fmt.Fprintln(output, l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, input)
		server.Close()
	}()
	if err := server.Serve(l); err != http.ErrServerClosed {
		return err
	}
	return nil
}

// process is a running proxy.
type process struct {
	url    string
	client *http.Client
	stop   func() error
}

// startProxy starts this program again, as a proxy.
func startProxy(ctx context.Context, kind, backend string, record bool) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-proxy", kind, "-backend", backend, "-record="+strconv.FormatBool(record))
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop := func() error {
		input.Close()
		return cmd.Wait()
	}
	address, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		_ = stop()
		return nil, fmt.Errorf("the proxy %s does not start: %w", kind, err)
	}
	return &process{url: "http://" + strings.TrimSpace(address), client: newClient(), stop: stop}, nil
}

func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true}}
}

// used is the CPU time of the process so far.
func (p *process) used() (time.Duration, error) {
	response, err := p.client.Get(p.url + usedPath)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseInt(string(text), 10, 64)
	return time.Duration(ns), err
}

// costs is the CPU time of the process while f runs.
func (p *process) costs(f func() error) (time.Duration, error) {
	before, err := p.used()
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	after, err := p.used()
	return after - before, err
}
