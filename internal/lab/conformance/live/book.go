package main

import (
	"sync"
	"time"

	"github.com/endpick/endpick"
)

// book is what servers and routers know about the requests under way, by the names
// that clients gave them.
type book struct{ open sync.Map } // of *trace

// begin adds a request, and forget removes it.
func (b *book) begin(name string) *trace {
	t := &trace{began: time.Now()}
	b.open.Store(name, t)
	return t
}

func (b *book) forget(name string) { b.open.Delete(name) }

// of returns nil for a request that has been removed.
func (b *book) of(name string) *trace {
	if t, ok := b.open.Load(name); ok {
		return t.(*trace)
	}
	return nil
}

// trace is one request over all its attempts.
type trace struct {
	began time.Time

	mu       sync.Mutex
	attempts []attempt      // those that reached a server
	running  int            // unfinished attempts
	open     int            // open leases
	leases   map[string]int // all leases, by endpoint
}

// attempt is an attempt at one server.
type attempt struct {
	server string
	fault  fault
	whole  bool // a complete good answer was sent
}

func (t *trace) begin(server string, f fault) (number int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running++
	t.attempts = append(t.attempts, attempt{server: server, fault: f})
	return len(t.attempts) - 1
}

func (t *trace) end(number int, whole bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running--
	t.attempts[number].whole = whole
}

// settle waits until nothing of the request is open; false: that takes too long.
func (t *trace) settle(patience time.Duration) bool {
	return within(patience, func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.open+t.running == 0
	})
}

// witness is a stage without opinions that records where requests go.
type witness struct{ book *book }

func (*witness) Filter(_ *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	return candidates
}

func (s *witness) Routed(e *endpick.Event) {
	if t := s.book.of(e.Request.Session); t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.open++
		if t.leases == nil {
			t.leases = map[string]int{}
		}
		t.leases[e.Candidate.Endpoint.ID]++
	}
}

func (s *witness) Done(e *endpick.Event, _ *endpick.Outcome) {
	if t := s.book.of(e.Request.Session); t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.open--
	}
}
