package transport

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxFailures is how many times in a row an endpoint may fail before it is
	// left out.
	maxFailures = 3
	// firstBackoff is how long it is then left out. Each failed trial doubles
	// that, up to maxBackoff.
	firstBackoff = time.Second
	maxBackoff   = 30 * time.Second
	// forgetAfter is when a failure no longer counts: the endpoint may be gone.
	forgetAfter = 10 * time.Minute
)

// health notices endpoints that can't be reached, from the requests that fail
// there. After maxFailures in a row an endpoint is left out for a backoff. The
// next request that is sent there is a trial, during which others keep away for
// as long again: if it fails the backoff doubles, any answer clears the
// endpoint. The zero value knows of no failure. It is safe for concurrent use.
type health struct {
	known atomic.Int32 // len(suspects), read without the lock

	mu       sync.Mutex
	suspects map[string]suspect
}

// suspect is an endpoint whose last request failed.
type suspect struct {
	failures int // in a row, counted up to maxFailures
	failedAt time.Time
	backoff  time.Duration
	until    time.Time // left out before that
	trial    bool      // a request is out to see
}

// out appends to dst the endpoints that should get no request now.
func (h *health) out(now time.Time, dst []string) []string {
	if h.known.Load() == 0 {
		return dst
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, s := range h.suspects {
		if now.Before(s.until) {
			dst = append(dst, id)
		}
	}
	return dst
}

// sent says that a request goes to an endpoint.
func (h *health) sent(id string, now time.Time) {
	if h.known.Load() == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.suspects[id]
	if !ok || s.failures < maxFailures || now.Before(s.until) {
		return // in good health, or sent there because nothing else was left
	}
	s.trial = true
	s.until = now.Add(s.backoff)
	h.suspects[id] = s
}

// answered says that an endpoint has answered, whatever the answer.
func (h *health) answered(id string) {
	if h.known.Load() == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.suspects, id)
	h.known.Store(int32(len(h.suspects)))
}

// failed says that an endpoint could not be reached, or did not answer. While
// it is left out that says nothing new, except of the trial: the request was
// sent before, or because nothing else was left.
func (h *health) failed(id string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.suspects[id]
	if !ok {
		h.forget(now)
	}
	s.failedAt = now
	s.failures = min(s.failures+1, maxFailures)
	switch {
	case s.failures < maxFailures:
	case s.backoff == 0:
		s.backoff = firstBackoff
		s.until = now.Add(s.backoff)
	case s.trial:
		s.trial = false
		s.backoff = min(2*s.backoff, maxBackoff)
		s.until = now.Add(s.backoff)
	}
	if h.suspects == nil {
		h.suspects = map[string]suspect{}
	}
	h.suspects[id] = s
	h.known.Store(int32(len(h.suspects)))
}

// forget drops failures of long ago; h.mu is held.
func (h *health) forget(now time.Time) {
	for id, s := range h.suspects {
		if now.Sub(s.failedAt) > forgetAfter {
			delete(h.suspects, id)
		}
	}
}
