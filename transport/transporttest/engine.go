package transporttest

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Engine is a server that misbehaves, for your own tests.
type Engine struct {
	Address string          // host:port
	Stream  bool            // the client must ask for a stream
	Leaves  bool            // the engine hangs, and the client must leave once Asked is closed
	Asked   <-chan struct{} // closed when the engine has been asked
}

// StartEngine starts an engine that misbehaves in one of the ways of [Faults], until
// the test ends.
func StartEngine(t testing.TB, name string) *Engine {
	t.Helper()
	for _, f := range faults() {
		if f.name != name {
			continue
		}
		e, err := startEngine(&f)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.close)
		return &Engine{Address: e.listener.Addr().String(), Stream: f.stream, Leaves: f.leaves, Asked: e.asked}
	}
	t.Fatalf("%q is none of the Faults", name)
	return nil
}

// engine is a server that runs one script for every request, on a connection of
// its own, and then closes it.
type engine struct {
	listener net.Listener
	script   func(*conn)
	early    bool // does not read the request
	wg       sync.WaitGroup
	mu       sync.Mutex
	conns    map[net.Conn]bool
	asked    chan struct{} // closed when the first request has arrived
	once     sync.Once
	left     chan struct{} // closed when a host has left a script that waits
	leftOnce sync.Once
}

func startEngine(f *fault) (*engine, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e := &engine{listener: l, script: f.script, early: f.early, conns: map[net.Conn]bool{}, asked: make(chan struct{}), left: make(chan struct{})}
	e.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			e.mu.Lock()
			e.conns[c] = true
			e.mu.Unlock()
			e.wg.Go(func() { e.serve(c) })
		}
	})
	return e, nil
}

func (e *engine) close() {
	e.listener.Close()
	e.mu.Lock()
	for c := range e.conns {
		c.Close()
	}
	e.mu.Unlock()
	e.wg.Wait()
}

func (e *engine) serve(c net.Conn) {
	defer func() {
		c.Close()
		e.mu.Lock()
		delete(e.conns, c)
		e.mu.Unlock()
	}()
	r := bufio.NewReader(c)
	if !e.early {
		req, err := http.ReadRequest(r)
		if err != nil {
			return // an idle connection, or one opened in advance
		}
		io.Copy(io.Discard, req.Body)
	}
	e.once.Do(func() { close(e.asked) })
	e.script(&conn{Conn: c, r: r, e: e})
	if tcp, ok := c.(*net.TCPConn); ok && tcp.CloseWrite() == nil {
		// So that what was sent arrives, even if the host has sent more.
		c.SetReadDeadline(time.Now().Add(5 * time.Second))
		io.Copy(io.Discard, r)
	}
}

// conn is what a script writes to. Errors, of a host that has left, are ignored.
type conn struct {
	net.Conn
	r *bufio.Reader
	e *engine
}

func (c *conn) say(s string) { io.WriteString(c, s) }

// chunks writes each text as a chunk.
func (c *conn) chunks(texts ...string) {
	for _, s := range texts {
		c.say(strconv.FormatInt(int64(len(s)), 16) + "\r\n" + s + "\r\n")
	}
}

func (c *conn) end() { c.say("0\r\n\r\n") }

func (c *conn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	c.Close()
}

// hang waits until the host leaves.
func (c *conn) hang() {
	io.Copy(io.Discard, c.r)
	c.e.leftOnce.Do(func() { close(c.e.left) })
}
