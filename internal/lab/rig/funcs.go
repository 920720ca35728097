package rig

import (
	"net/http"
	"sync"
)

// RoundTrip is a function as an [http.RoundTripper].
type RoundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (f RoundTrip) RoundTrip(in *http.Request) (*http.Response, error) { return f(in) }

// Reader is a function as an [io.Reader].
type Reader func([]byte) (int, error)

// Read implements [io.Reader].
func (f Reader) Read(p []byte) (int, error) { return f(p) }

// List collects what several goroutines report.
type List[T any] struct {
	mu  sync.Mutex
	all []T
}

// Add appends to the list.
func (l *List[T]) Add(v T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, v)
}

// Take returns what was added since the last call.
func (l *List[T]) Take() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all
	l.all = nil
	return all
}
