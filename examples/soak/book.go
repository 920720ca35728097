package main

import (
	"sync"
	"time"

	"github.com/endpick/endpick"
)

// book is what servers and routers know about the requests under way, by the names
// that clients gave them.
type book struct {
	shards [64]struct {
		mu   sync.Mutex
		open map[string]*trace
	}
}

func newBook() *book {
	b := &book{}
	for i := range b.shards {
		b.shards[i].open = map[string]*trace{}
	}
	return b
}

func (b *book) shard(name string) int {
	h := uint32(2166136261)
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * 16777619
	}
	return int(h % uint32(len(b.shards)))
}

// open adds a request, and close removes it.
func (b *book) open(name string) *trace {
	t := &trace{began: time.Now()}
	s := &b.shards[b.shard(name)]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[name] = t
	return t
}

func (b *book) close(name string) {
	s := &b.shards[b.shard(name)]
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, name)
}

// of returns nil for a request that has been removed.
func (b *book) of(name string) *trace {
	s := &b.shards[b.shard(name)]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[name]
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
	mood   mood
	whole  bool // a complete good answer was sent
}

func (t *trace) begin(server string, m mood) (number int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running++
	t.attempts = append(t.attempts, attempt{server: server, mood: m})
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
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		t.mu.Lock()
		left := t.open + t.running
		t.mu.Unlock()
		if left == 0 {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// spy is a stage without opinions that records where requests go.
type spy struct{ book *book }

func (*spy) Filter(_ *endpick.Request, candidates []endpick.Candidate) []endpick.Candidate {
	return candidates
}

func (s *spy) Routed(e *endpick.Event) {
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

func (s *spy) Done(e *endpick.Event, _ *endpick.Outcome) {
	if t := s.book.of(e.Request.Session); t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.open--
	}
}
