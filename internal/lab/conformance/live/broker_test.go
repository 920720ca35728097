package main

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/endpick/endpick/internal/lab/rig"
	nats "github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
)

// broker is a NATS server in this process that can be killed and restarted. Gateways
// reach it through wires, so that its address does not matter.
type broker struct {
	password string // empty: none is required. Read when it starts
	server   *nats.Server
	wires    []*wire
}

func newBroker(t *testing.T) *broker {
	b := &broker{}
	b.start(t)
	t.Cleanup(func() {
		b.kill()
		for _, w := range b.wires {
			w.listener.Close()
			w.all.Wait()
		}
	})
	return b
}

func (b *broker) start(t *testing.T) {
	o := &nats.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true}
	if b.password != "" {
		o.Username, o.Password = "gateway", b.password
	}
	b.server = rig.Must(nats.NewServer(o))
	b.server.Start()
	require.True(t, b.server.ReadyForConnections(30*time.Second))
	for _, w := range b.wires {
		w.lead(b.server.Addr().String())
	}
}

// kill ends the server abruptly, if it runs.
func (b *broker) kill() {
	for _, w := range b.wires {
		w.lead("")
	}
	b.server.Shutdown()
	b.server.WaitForShutdown()
}

// wire is a path to a server: connections to its listener are forwarded to the current target.
type wire struct {
	listener net.Listener

	mu     sync.Mutex
	target string        // empty: none
	held   chan struct{} // nothing passes until it is closed
	conns  map[net.Conn]bool
	all    sync.WaitGroup
}

// wire returns a new path to the server, if it runs.
func (b *broker) wire() *wire {
	w := &wire{listener: rig.Must(net.Listen("tcp", "127.0.0.1:0")), conns: map[net.Conn]bool{}}
	w.all.Go(w.accept)
	if b.server.Running() {
		w.lead(b.server.Addr().String())
	}
	b.wires = append(b.wires, w)
	return w
}

func (w *wire) url() string { return "nats://" + w.listener.Addr().String() }

// lead breaks all connections and forwards new ones to target.
func (w *wire) lead(target string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.target = target
	for c := range w.conns {
		c.Close()
	}
}

// hold keeps connections open but blocks them, like a machine that hangs, until release is called.
func (w *wire) hold() (release func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	held := make(chan struct{})
	w.held = held
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.held = nil
		close(held)
	})
}

func (w *wire) wait() {
	w.mu.Lock()
	held := w.held
	w.mu.Unlock()
	if held != nil {
		<-held
	}
}

func (w *wire) accept() {
	for {
		in, err := w.listener.Accept()
		if err != nil {
			return
		}
		w.all.Go(func() { w.carry(in) })
	}
}

func (w *wire) carry(in net.Conn) {
	defer in.Close()
	w.mu.Lock()
	target := w.target
	w.mu.Unlock()
	out, err := net.Dial("tcp", target)
	if err != nil { // or there is no target
		return
	}
	defer out.Close()
	w.mu.Lock()
	if w.target != target {
		w.mu.Unlock()
		return
	}
	w.conns[in], w.conns[out] = true, true
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.conns, in)
		delete(w.conns, out)
	}()
	var both sync.WaitGroup
	both.Go(func() { w.pass(in, out) })
	both.Go(func() { w.pass(out, in) })
	both.Wait()
}

// pass forwards bytes in one direction until an end breaks.
func (w *wire) pass(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	buffer := make([]byte, 64<<10)
	for {
		w.wait()
		n, err := from.Read(buffer)
		w.wait()
		if _, failed := to.Write(buffer[:n]); err != nil || failed != nil {
			return
		}
	}
}
