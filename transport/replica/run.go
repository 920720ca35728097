package replica

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport/replica/internal/protocol"
)

const (
	// together is how long a routed request waits to share a message, soon how long
	// first tokens and ends wait for a routed request.
	together = time.Millisecond
	soon     = 40 * time.Millisecond
	every    = 50 * time.Millisecond // between ticks of the protocol

	maxInbox      = 1 << 12 // messages waiting to be handled
	maxInboxBytes = 32 << 20
	maxMessage    = 350 << 10
)

// Run exchanges messages with the others until ctx is done; then it removes their
// requests from the router, and tells them that it leaves. The router is the one whose
// policy contains the replica. The error says why Run could not start, or is nil.
func (r *Replica) Run(ctx context.Context, router *endpick.Router, bus Bus) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("replica: Run is already running")
	}
	defer r.running.Store(false)
	if h := r.config.Health; h != nil {
		if h.Core().Router() != router {
			return errors.New("replica: Config.Health is over another router")
		}
		h.Core().Tell(r.tellOutcome)
	}
	for {
		s := &session{replica: r, router: router, inbox: make(chan []byte, maxInbox)}
		again, err := s.run(ctx, bus)
		if !again {
			return err
		}
	}
}

// session is a run as one instance. Its fields belong to its goroutine.
type session struct {
	replica *Replica
	router  *endpick.Router
	node    *protocol.Node
	line    Line
	inbox   chan []byte
	waiting atomic.Int64 // bytes in inbox
	missed  atomic.Uint64

	counts    Status // counts of this session
	before    Status // counts of earlier sessions
	outcomes  map[string]*[2]int
	keptAlive time.Time
	events    []event
	blocks    []uint64
}

func draw() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

func (s *session) run(ctx context.Context, bus Bus) (again bool, err error) {
	c := &s.replica.config
	instance := uint32(draw()) | 1
	s.node = protocol.New(protocol.Config{
		Instance: instance, Name: cmp.Or(c.Name, fmt.Sprintf("%08x", instance)), Secret: c.Key.Reveal(), ShareBlocks: !c.DisableIndex,
		Blocks: c.MaxBlocks, Forget: c.Forget, Draw: draw,
	})
	s.outcomes = map[string]*[2]int{}
	s.before = s.replica.Status()
	s.counts.Instance = instance
	if s.line, err = bus.Open(instance, s.receive); err != nil {
		return false, err
	}
	queue := s.replica.queue
	queue.set(true)
	defer func() {
		queue.set(false)
		s.leave()
		err = errors.Join(err, s.line.Close())
	}()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	pause := time.NewTimer(time.Hour)
	defer pause.Stop()
	var due pauseKind
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case <-queue.wake:
			if due != short {
				pause.Reset(together)
				due = short
			}
		case <-queue.soon:
			if due == none {
				pause.Reset(soon)
				due = long
			}
		case <-pause.C:
			due = none
			if s.tell() {
				return true, nil
			}
		case message := <-s.inbox:
			s.takeIn(message)
		case <-ticker.C:
			if s.tell() {
				return true, nil
			}
			s.node.Tick(s.router.Now())
			s.pass()
			s.keepAlive()
			s.publish()
		}
	}
}

// pauseKind says what to wait for before a batch is sent.
type pauseKind int

const (
	none pauseKind = iota
	short
	long
)
