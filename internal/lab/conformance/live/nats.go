package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	nats "github.com/nats-io/nats-server/v2/server"
)

// broker is a NATS server in this process that can be killed and restarted. Gateways
// reach it through wires, so that its address does not matter.
type broker struct {
	password string // empty: none is required. Read when it starts

	mu     sync.Mutex
	server *nats.Server // nil: killed
	wires  []*wire
}

func startBroker() (*broker, error) {
	b := &broker{}
	return b, b.start()
}

func (b *broker) start() error {
	o := &nats.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true}
	if b.password != "" {
		o.Username, o.Password = "gateway", b.password
	}
	s, err := nats.NewServer(o)
	if err != nil {
		return fmt.Errorf("NATS: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(30 * time.Second) {
		s.Shutdown()
		return errors.New("NATS does not start")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.server = s
	for _, w := range b.wires {
		w.lead(s.Addr().String())
	}
	return nil
}

// kill ends the server abruptly.
func (b *broker) kill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.server == nil {
		return
	}
	for _, w := range b.wires {
		w.lead("")
	}
	b.server.Shutdown()
	b.server.WaitForShutdown()
	b.server = nil
}

// wire returns a new connection path to the server.
func (b *broker) wire(delay time.Duration) (*wire, error) {
	w, err := newWire(delay)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wires = append(b.wires, w)
	if b.server != nil {
		w.lead(b.server.Addr().String())
	}
	return w, nil
}

func (b *broker) close() {
	b.kill()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.wires {
		w.close()
	}
	b.wires = nil
}
