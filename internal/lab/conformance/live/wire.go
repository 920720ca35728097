package main

import (
	"net"
	"sync"
	"time"
)

// wire is a path to a server with a delay that can be cut: connections to its
// listener are forwarded to the current target.
type wire struct {
	listener net.Listener
	delay    time.Duration // in each direction

	mu     sync.Mutex
	target string // empty: none
	cut    bool
	held   chan struct{} // nothing passes until it is closed
	conns  map[net.Conn]bool
	all    sync.WaitGroup
}

func newWire(delay time.Duration) (*wire, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &wire{listener: l, delay: delay, conns: map[net.Conn]bool{}}
	w.all.Go(w.accept)
	return w, nil
}

func (w *wire) url() string { return "nats://" + w.listener.Addr().String() }

// lead breaks all connections and forwards new ones to target.
func (w *wire) lead(target string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.target = target
	w.breakAll()
}

// sever breaks all connections and accepts no more, or accepts them again.
func (w *wire) sever(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	w.breakAll()
}

// hold keeps connections open but blocks them, like a machine that hangs, until release
// is called.
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

func (w *wire) breakAll() {
	for c := range w.conns {
		c.Close()
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
	if w.cut {
		target = ""
	}
	w.mu.Unlock()
	if target == "" {
		return
	}
	out, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer out.Close()
	w.mu.Lock()
	if w.cut || w.target != target {
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

// late is data, and when to pass it on.
type late struct {
	at    time.Time
	bytes []byte
}

// pass forwards bytes in one direction until an end breaks.
func (w *wire) pass(from, to net.Conn) {
	defer to.Close()
	queue := make(chan late, 1024)
	var writer sync.WaitGroup
	writer.Go(func() {
		defer from.Close()
		for l := range queue {
			time.Sleep(time.Until(l.at))
			w.wait()
			if _, err := to.Write(l.bytes); err != nil {
				for range queue { // until the reader has noticed
				}
				return
			}
		}
	})
	defer writer.Wait()
	defer close(queue)
	buffer := make([]byte, 64<<10)
	for {
		w.wait()
		n, err := from.Read(buffer)
		if n > 0 {
			queue <- late{time.Now().Add(w.delay), append([]byte(nil), buffer[:n]...)}
		}
		if err != nil {
			return
		}
	}
}

func (w *wire) close() {
	w.listener.Close()
	w.sever(true)
	w.all.Wait()
}
