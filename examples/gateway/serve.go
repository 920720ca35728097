package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/traffic"
	"github.com/endpick/endpick/transport"
	"golang.org/x/net/netutil"
)

// serve is a gateway until the context ends. Then it accepts no more requests,
// and waits for those in flight, for the grace period at most.
func serve(ctx context.Context, o *options, stderr io.Writer) (err error) {
	s, text := o.settings, []byte(nil)
	if o.config != "" {
		if s, text, err = readSettings(o.config); err != nil {
			return err
		}
	}
	logger := newLogger(stderr, &s.Log)
	log.SetOutput(io.Discard)      // net/http says there what servers send beyond the end of their answers
	signal.Ignore(syscall.SIGPIPE) // whoever reads the log may end: requests go on
	endpoints, stop, err := backends(s, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	g, err := newGateway(s, endpoints, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	g.warnOf(s)
	l, err := net.Listen("tcp", s.Listen)
	if err != nil {
		return s.failed("listen", err)
	}
	server := g.server(s)
	if n := g.connections(s.Limits.Connections); n > 0 {
		l = limit(l, n, server) // others wait to be accepted
	}
	defer l.Close()
	admin, err := net.Listen("tcp", s.Admin)
	if err != nil {
		return s.failed("admin", err)
	}
	defer admin.Close()
	if o.config != "" {
		hangup := make(chan os.Signal, 1)
		signal.Notify(hangup, syscall.SIGHUP)
		defer signal.Stop(hangup)
		following, cancel := context.WithCancel(ctx)
		var reloads sync.WaitGroup
		defer reloads.Wait() // what a reload starts is g's, and ends with it
		defer cancel()
		reloads.Go(func() { newReloader(o.config, text, s, g, logger).follow(following, hangup) })
	}
	if s.Discover == nil { // discovered ones are logged when they are found
		for _, there := range g.router.Endpoints() {
			e := there.Candidate.Endpoint // whose ID has no credentials, unlike its address
			to, err := transport.Target(e, &url.URL{})
			if err != nil {
				return err
			}
			to.User = nil // credentials in it are for the server only
			logger.Info("endpoint", "id", e.ID, "url", to.String())
		}
	}

	pages := &http.Server{Handler: notRebound(g.admin, admin.Addr()), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute}
	pages.ErrorLog = server.ErrorLog
	defer pages.Close()
	at := url.URL{Scheme: "http", Host: l.Addr().String()}
	if s.TLS != nil {
		at.Scheme = "https"
	}
	served := make(chan error, 2)
	go func() { served <- serveOn(server, l) }()
	go func() { served <- pages.Serve(admin) }()
	pagesAt := "http://" + admin.Addr().String()
	clients := "anybody who reaches it"
	if len(s.Tenants) > 0 {
		clients = "the keys of " + count(len(s.Tenants), "tenant")
	}
	logger.Info("routing", "url", at.String(), "open_to", clients, "policy", s.Policy, "decisions", pagesAt+"/debug/endpick", "metrics", pagesAt+"/metrics")
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	return g.shutdown(server, s.Timeouts.Drain, s.Timeouts.Grace)
}

// server is the HTTP server for clients.
func (g *gateway) server(s *settings) *http.Server {
	server := &http.Server{
		Handler: limitBody(limitUnread(g, s.Timeouts.Unread), s.Timeouts.Body), ReadHeaderTimeout: s.Timeouts.Header,
		ConnState:      closeIdle(s.Timeouts.Idle),
		MaxHeaderBytes: int(s.Limits.Header), ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
		Protocols: new(http.Protocols),
		// net/http's own handler of OPTIONS * reads a body for as long as a client takes to send it.
		DisableGeneralOptionsHandler: true,
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(s.H2C)
	if s.TLS != nil {
		server.Protocols.SetHTTP2(true)
		server.TLSConfig = &tls.Config{
			MinVersion: tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				return g.certificate.Load(), nil
			},
		}
	}
	return server
}

// closeIdle closes connections that are idle for too long. Zero: never. The timer that net/http has
// for that keeps one of HTTP/2 in memory after its end, with a thousand requests that it never began.
func closeIdle(after time.Duration) func(net.Conn, http.ConnState) {
	var timers sync.Map // by connection
	return func(c net.Conn, state http.ConnState) {
		if timer, ok := timers.LoadAndDelete(c); ok {
			timer.(*time.Timer).Stop()
		}
		if state == http.StateIdle && after > 0 {
			timers.Store(c, time.AfterFunc(after, func() {
				timers.Delete(c)
				_ = c.Close()
			}))
		}
	}
}

// connections is how many connections clients may have: as many as the settings say, or a third of
// those that the process may open, since each needs one to a server, and others are idle there.
// 0: no limit.
func (g *gateway) connections(n int) int {
	text, _ := os.ReadFile("/proc/self/limits")
	_, limit, _ := bytes.Cut(text, []byte("\nMax open files "))
	files := 0
	if _, err := fmt.Sscan(string(limit), &files); err != nil {
		return n // unknown, or none
	}
	most := max(files/3-20, 4)
	if n > 0 && n <= most {
		return n
	}
	if most < 4096 {
		g.log.Warn("few connections of clients are accepted at a time, because the process may open few files: see ulimit -n", "connections", most, "files", files)
	}
	return most
}

// limit bounds the connections of a server. It closes them after a response while most places are
// taken: others would wait for idle ones.
func limit(l net.Listener, n int, server *http.Server) net.Listener {
	var open atomic.Int64
	changed := server.ConnState
	server.ConnState = func(c net.Conn, state http.ConnState) {
		changed(c, state)
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
		}
	}
	next := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if open.Load() > int64(n)*3/4 && r.Header.Get("Upgrade") == "" {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
	return netutil.LimitListener(l, n)
}

func serveOn(server *http.Server, l net.Listener) error {
	if server.TLSConfig != nil {
		return server.ServeTLS(l, "", "")
	}
	return server.Serve(l)
}

// limitBody limits the time in which a client has to send its request, because the
// body is read before an endpoint is chosen. Zero: no limit. What follows has
// limits of its own.
func limitBody(next http.Handler, within time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		control := http.NewResponseController(w)
		set, end := deadlines(r, control.SetReadDeadline)
		defer end()
		if within > 0 {
			_ = set(time.Now().Add(within))
		}
		b := &timedBody{ReadCloser: r.Body, set: set}
		in := r.WithContext(r.Context()) // a server that does not see its own body there reads it before it sends a refusal
		in.Body = b
		next.ServeHTTP(w, in)
		if !b.over && r.ProtoMajor == 1 && r.Header.Get("Expect") == "" { // who expects an answer sends nothing more
			_ = control.Flush()
			_ = control.SetReadDeadline(time.Now().Add(dropFor))
			_, _ = io.CopyN(io.Discard, b, maxDropped)
		}
	})
}

// How much is read of a body whose request was refused before, and for how long. A client that is still
// sending would get a reset connection instead of the response, and try again.
const (
	maxDropped = 64 << 20
	dropFor    = 10 * time.Second
)

// deadlines sets those of a stream of HTTP/2, until end, by a timer of ours. One of net/http's that is
// set after the client has reset the stream keeps its connection in memory.
func deadlines(r *http.Request, set func(time.Time) error) (by func(time.Time) error, end func()) {
	if r.ProtoMajor == 1 {
		return set, func() {}
	}
	var mu sync.Mutex
	timer := time.AfterFunc(math.MaxInt64, func() {
		mu.Lock()
		defer mu.Unlock()
		if set != nil {
			_ = set(time.Unix(1, 0)) // ends it at once
		}
	})
	by = func(at time.Time) error {
		if timer.Stop(); !at.IsZero() {
			timer.Reset(time.Until(at))
		}
		return nil
	}
	return by, func() {
		mu.Lock()
		defer mu.Unlock()
		set = nil
		timer.Stop()
	}
}

// timedBody removes the deadline when the body has been read: reads after that
// only show whether the client is still there.
type timedBody struct {
	io.ReadCloser
	set  func(deadline time.Time) error
	over bool // nothing more comes
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.over = b.over || err != nil; err == io.EOF {
		_ = b.set(time.Time{})
	}
	return n, err
}

// Close leaves the rest to be dropped, or to the server.
func (b *timedBody) Close() error { return nil }

// limitUnread bounds how long a client may read nothing of its response, which would
// otherwise hold a connection, and a place at a server, forever. Zero: no bound.
func limitUnread(next http.Handler, within time.Duration) http.Handler {
	if within == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		set, end := deadlines(r, control.SetWriteDeadline)
		defer end()
		timed := &timedWriter{w, control, writeLimit{set: set, within: within}}
		next.ServeHTTP(timed, r)
		if timed.extend(); r.ProtoMajor > 1 { // else the server sends the rest after, and lifts the deadline
			_ = control.Flush()
		}
	})
}

// writeLimit bounds each write.
type writeLimit struct {
	set    func(deadline time.Time) error
	within time.Duration
}

func (l *writeLimit) extend() { _ = l.set(time.Now().Add(l.within)) }

// timedWriter is a response whose writes are bounded.
type timedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	writeLimit
}

func (w *timedWriter) Write(p []byte) (int, error) {
	w.extend()
	defer w.set(time.Time{}) // over HTTP/2 it would end the stream, even if nothing is to be written
	return w.ResponseWriter.Write(p)
}

// FlushError is called by [http.ResponseController].
func (w *timedWriter) FlushError() error {
	w.extend()
	defer w.set(time.Time{})
	return w.control.Flush()
}

// Hijack is called by [http.ResponseController] for a connection that leaves HTTP.
func (w *timedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := w.control.Hijack()
	if err == nil {
		conn = &timedConn{conn, writeLimit{set: conn.SetWriteDeadline, within: w.within}}
	}
	return conn, buffered, err
}

// Unwrap returns the writer with the other methods.
func (w *timedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// timedConn is a connection whose writes are bounded. It may be silent for as long as it likes.
type timedConn struct {
	net.Conn
	writeLimit
}

func (c *timedConn) Write(p []byte) (int, error) {
	c.extend()
	return c.Conn.Write(p)
}

// CloseWrite is called by [httputil.ReverseProxy] when the server has nothing more to say.
func (c *timedConn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return http.ErrNotSupported
	}
	return half.CloseWrite()
}

// shutdown takes requests until load balancers had time to hear of it from /readyz, waits for those
// that are queued or running, for grace at most, and stops the server. Meanwhile it refuses others.
func (g *gateway) shutdown(server *http.Server, drain, grace time.Duration) error {
	g.leaving.Store(true)
	g.log.Info("stopping", "requests", g.pending(), "grace", grace)
	time.Sleep(drain)
	g.stopping.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	for g.pending() > 0 && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	if server.Shutdown(ctx) == nil {
		return nil
	}
	if cut := g.pending(); cut > 0 {
		return errors.Join(fmt.Errorf("%d requests were cut off after %v", cut, grace), server.Close())
	}
	return server.Close() // connections without one
}

// backends are the endpoints of the settings, or embedded servers, which stop shuts
// down.
func backends(s *settings, o *options) (endpoints []endpick.Endpoint, stop func() error, err error) {
	if s.Discover != nil || len(s.Endpoints) > 0 {
		return s.endpoints(), func() error { return nil }, nil
	}
	config, err := traffic.ServerConfig(o.kvTokens)
	if err != nil {
		return nil, nil, err
	}
	f, err := traffic.StartFleet(o.servers, config)
	if err != nil {
		return nil, nil, err
	}
	return f.Endpoints(), f.Close, nil
}
