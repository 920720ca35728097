package main

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
)

// story is one request on the debug page: the decision, and its result. For a
// request that was retried, the decision is the last.
type story struct {
	receipt endpick.Receipt
	end     atomic.Pointer[ending] // nil: still running
}

// ending is the result of a request, without the client's data. HTTP is the status that the
// client got.
type ending struct {
	transport.Observation
	TTFT, TPOT, E2E latency
}

func newEnding(r *transport.Observation) *ending {
	ttft, tpot, e2e := r.Latencies()
	e := &ending{*r, latency(ttft), latency(tpot), latency(e2e)}
	e.In, e.Prompt = nil, nil
	if r.Err != nil {
		e.HTTP = transport.StatusOf(r.Err)
	}
	return e
}

// At is when it ended.
func (e *ending) At() time.Time {
	return e.Time.Add(time.Duration(e.E2EMillis * float64(time.Millisecond)))
}

// Failed reports whether the request was not served for a reason other than the
// client's.
func (e *ending) Failed() bool {
	switch {
	case e.Status == endpick.Canceled.String():
		return false
	case e.HTTP == http.StatusTooManyRequests || e.HTTP >= 500:
		return true
	}
	return e.Status == endpick.Failed.String() && e.HTTP < 400
}

// Before are the failed attempts before the last.
func (e *ending) Before() []transport.ObservedAttempt {
	if e.Serving < 0 {
		return e.Attempts
	}
	return e.Attempts[:min(e.Serving, len(e.Attempts))]
}

// stories keeps the latest requests, and the latest failures.
type stories struct {
	most, mostFailed int

	mu     sync.Mutex
	newest []*story // ordered by first byte
	failed []*story // ordered by end
}

type storyKey struct{}

// keep gives every request a story with a receipt for the router to fill, and keeps
// the story when the response begins.
func (s *stories) keep(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(in *http.Request) (*http.Response, error) {
		one := new(story)
		defer s.add(one)
		return next.RoundTrip(in.WithContext(context.WithValue(in.Context(), storyKey{}, one)))
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(in *http.Request) (*http.Response, error) { return f(in) }

func storyOf(ctx context.Context) *story {
	one, _ := ctx.Value(storyKey{}).(*story)
	return one
}

// describe requests the receipt.
func (s *stories) describe(in *http.Request, req *endpick.Request) {
	if one := storyOf(in.Context()); one != nil {
		req.Receipt = &one.receipt
	}
}

func (s *stories) add(one *story) {
	if one.receipt.Number == 0 {
		return // no decision was made
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newest = appended(s.newest, one, s.most)
}

// observe records how a request has ended.
func (s *stories) observe(r *transport.Observation) {
	one := storyOf(r.In.Context())
	if one == nil {
		return
	}
	end := newEnding(r)
	one.end.Store(end)
	if end.Failed() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failed = appended(s.failed, one, s.mostFailed)
	}
}

func appended(all []*story, one *story, most int) []*story {
	if len(all) >= most {
		all = slices.Delete(all, 0, len(all)-most+1)
	}
	return append(all, one)
}

// last returns the kept stories, newest first.
func (s *stories) last() (newest, failed []*story) {
	s.mu.Lock()
	defer s.mu.Unlock()
	newest, failed = slices.Clone(s.newest), slices.Clone(s.failed)
	slices.SortFunc(newest, func(a, b *story) int { return cmp.Compare(b.receipt.Number, a.receipt.Number) })
	slices.Reverse(failed)
	return newest, failed
}
