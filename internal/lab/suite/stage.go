package suite

import (
	"strings"
	"sync"
	"time"
)

// stage is what the client and the servers of one exchange know about each other.
type stage struct {
	patience time.Duration

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced at each change
	heard    strings.Builder
	attempts []*Attempt
	serving  int  // requests that a server is handling
	spoken   bool // a server has sent all its parts
	late     []string
}

// update changes the state and wakes all waiters.
func (s *stage) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.changed)
	s.changed = make(chan struct{})
}

// wait waits for a condition, or until gone is closed. If it takes too long, that is
// recorded.
func (s *stage) wait(what string, gone <-chan struct{}, holds func() bool) {
	limit := time.NewTimer(s.patience)
	defer limit.Stop()
	for {
		s.mu.Lock()
		ok, changed := holds(), s.changed
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-gone:
			return
		case <-limit.C:
			s.update(func() { s.late = append(s.late, what) })
			return
		}
	}
}
