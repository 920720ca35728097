package main

import (
	"bytes"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/engine"
	"github.com/endpick/endpick/internal/lab/suite"
)

// Headers of requests and responses between clients and servers.
const (
	nameHeader = "Session-Id"
	paceHeader = "X-Pace" // milliseconds between events
	goodHeader = "X-Good" // the server must answer well
)

// server computes nothing, and has faults. After being killed it gets another address,
// because ports can't be kept.
type server struct {
	id, address string
	book        *book
	seed        uint64
	count       atomic.Uint64
	did         *[faults]atomic.Int64 // of all servers

	mu     sync.Mutex
	http   *http.Server // nil: killed
	idle   map[net.Conn]bool
	served chan error
	downs  []span // when it was down
}

// span is a time during which a server was down; a zero to: it still is.
type span struct{ from, to time.Time }

func (e *server) start() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	h := &http.Server{Handler: e, ConnState: e.changed, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- h.Serve(l) }()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.address, e.http, e.served = l.Addr().String(), h, served
	return nil
}

// known records that its new address is known everywhere.
func (e *server) known() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.downs[len(e.downs)-1].to = time.Now()
}

// kill breaks all connections, and accepts no more.
func (e *server) kill() error {
	e.mu.Lock()
	h := e.http
	if h == nil {
		e.mu.Unlock()
		return nil
	}
	e.http = nil
	e.downs = append(e.downs, span{from: time.Now()})
	if len(e.downs) > 100 {
		e.downs = e.downs[50:]
	}
	e.mu.Unlock()
	err := h.Close()
	if ended := <-e.served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

// rest closes idle connections, including those that were opened in advance and never
// used.
func (e *server) rest() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.idle {
		_ = c.Close()
	}
}

// changed tracks idle connections.
func (e *server) changed(c net.Conn, state http.ConnState) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch state {
	case http.StateNew, http.StateIdle:
		e.idle[c] = true
	default:
		delete(e.idle, c)
	}
}

// downSince reports whether it was down at any time since t.
func (e *server) downSince(t time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.downs, func(s span) bool { return s.to.IsZero() || s.to.After(t) })
}

func (e *server) endpoint() endpick.Endpoint {
	e.mu.Lock()
	defer e.mu.Unlock()
	return endpick.Endpoint{ID: e.id, Address: e.address, Models: []string{suite.Model}}
}

func (e *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	f := none
	if r.Header.Get(goodHeader) == "" {
		f = draw(engine.Mix(e.seed ^ engine.Mix(e.count.Add(1))))
	}
	e.did[f].Add(1)
	whole := false
	if t := e.book.of(r.Header.Get(nameHeader)); t != nil {
		number := t.begin(e.id, f)
		defer func() { t.end(number, whole) }()
	}
	pace, _ := strconv.Atoi(r.Header.Get(paceHeader))
	a := &reply{
		w: w, r: r, flush: http.NewResponseController(w).Flush, pace: time.Duration(pace) * time.Millisecond,
		stream: bytes.Contains(body, []byte(`"stream":true`)), usage: bytes.Contains(body, []byte(`"include_usage":true`)),
	}
	whole = a.give(f)
}
