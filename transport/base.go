package transport

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/internal/host"
)

// Target is the URL at which an endpoint serves the path and query of in. An
// Address is "host:port" or a URL of scheme http, https or h2c, with a base
// path or without; anything else is ErrAddress. A path of in that could climb
// out of the base path is an [endpick.RequestError].
//
// A name and a password in the Address are for the server alone: they are in the
// URL returned, and a [Transport] sends them as Basic authorization in place of
// the client's.
func Target(e *endpick.Endpoint, in *url.URL) (*url.URL, error) { return host.Of(e.Address, in) }

// base sends requests by the scheme of their URL. Requests that close their
// connection (http.Request.Close) get one of their own.
type base struct {
	http, h2c       *http.Transport
	ownHTTP, ownH2C *http.Transport
}

func newBase() *base {
	dialer := &net.Dialer{
		Timeout: 5 * time.Second,
		// Detects within half a minute that a server has vanished.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	t := &http.Transport{
		// Engines are near: no proxy in between, and no compression.
		DialContext:         dialer.DialContext,
		DisableCompression:  true,
		TLSHandshakeTimeout: 5 * time.Second,
		// Each HTTP/1.1 stream has a connection to itself; the default of two idle
		// connections per host would open a new one for nearly every request.
		MaxIdleConnsPerHost: 512,
		IdleConnTimeout:     90 * time.Second,
		// Enough for the header and most bodies.
		WriteBufferSize:        16 << 10,
		MaxResponseHeaderBytes: 1 << 20,
		Protocols:              new(http.Protocols),
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
	}
	t.Protocols.SetHTTP1(true)
	t.Protocols.SetHTTP2(true)
	h2c := t.Clone()
	h2c.Protocols = new(http.Protocols)
	h2c.Protocols.SetUnencryptedHTTP2(true)
	b := &base{http: t, h2c: h2c, ownHTTP: t.Clone(), ownH2C: h2c.Clone()}
	b.ownHTTP.DisableKeepAlives, b.ownH2C.DisableKeepAlives = true, true
	return b
}

func (b *base) RoundTrip(req *http.Request) (*http.Response, error) {
	shared, own := b.http, b.ownHTTP
	if req.URL.Scheme == "h2c" {
		plain, at := *req, *req.URL // a wrapper may send the request again
		at.Scheme, plain.URL = "http", &at
		req, shared, own = &plain, b.h2c, b.ownH2C
	}
	if req.Close {
		return own.RoundTrip(req)
	}
	return shared.RoundTrip(req)
}

func (b *base) CloseIdleConnections() {
	b.http.CloseIdleConnections()
	b.h2c.CloseIdleConnections()
}

// connection is what is known about the connection of a request.
type connection struct {
	reused, answered atomic.Bool
}

func (c *connection) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn:              func(info httptrace.GotConnInfo) { c.reused.Store(info.Reused) },
		GotFirstResponseByte: func() { c.answered.Store(true) },
	}
}

// stale reports whether the request failed because the server had closed the
// idle connection, or closed it at the same time, which is no failure of the
// server.
func (c *connection) stale(err error) bool {
	if !c.reused.Load() || c.answered.Load() {
		return false
	}
	var op *net.OpError
	return errors.As(err, &op) && !op.Timeout() && !host.IsDial(err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || closedIdle(err)
}

// closedIdle reports whether the server had closed the connection before
// anything was sent. net/http does not export that error.
func closedIdle(err error) bool { return err.Error() == "http: server closed idle connection" }
