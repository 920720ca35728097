package main

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/transport"
)

// story is one request on the debug page: the decision, and its result. For a
// request that was retried, the decision is the last.
type story struct {
	id, tenant string
	asked      *endpick.Receipt // for the router to fill, and for traces; nil once it is settled
	described  bool             // it is no list of models
	settled    sync.Once
	receipt    endpick.Receipt
	why        []string
	hidden     int                    // verdicts that were dropped
	end        atomic.Pointer[ending] // nil: still running
}

// mostShownCandidates are those of each request that are kept.
const mostShownCandidates = 12

// settle explains the decision and drops what would take much memory: all but the best
// candidates and the chosen one, and what refers to the request's body.
func (s *story) settle(health func(endpoint string) string) {
	s.settled.Do(func() {
		r := &s.receipt
		*r, s.asked = *s.asked, nil
		s.why = why(r, health)
		r.Model, r.Err = strings.Clone(r.Model), textOf(r.Err)
		s.hidden = max(len(r.Verdicts)-mostShownCandidates, 0)
		all := r.Verdicts
		r.Verdicts = slices.Clone(all[:len(all)-s.hidden])
		if s.hidden > 0 && r.Chosen >= mostShownCandidates {
			r.Verdicts[mostShownCandidates-1], r.Chosen = all[r.Chosen], mostShownCandidates-1
		}
		for i := range r.Verdicts {
			r.Verdicts[i].Scores = slices.Clone(r.Verdicts[i].Scores)
		}
	})
}

// textOf is an error with the same text, and nothing else.
func textOf(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	return errors.New(text[:min(len(text), 1<<10)])
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
	e.In, e.Prompt, e.Receipt = nil, nil, nil
	e.Model, e.Err, e.HTTP = strings.Clone(r.Model), textOf(r.Err), r.Code()
	e.Attempts = slices.Clone(r.Attempts)
	for i := range e.Attempts {
		e.Attempts[i].Err = textOf(e.Attempts[i].Err)
	}
	return e
}

// is reports whether a request has ended like that.
func (e *ending) is(status endpick.Status) bool { return e != nil && e.Status == status.String() }

// stories are the latest requests: those that were not refused, of these the ones that failed,
// and the refused ones, which can't push out the others.
type stories struct {
	most   int                          // of each
	health func(endpoint string) string // why it is avoided; empty: it is not, for its health

	mu                      sync.Mutex
	newest, failed, refused []*story // by first byte, by end
}

type storyKey struct{}

// keep gives every request a story with a receipt for the router to fill, and keeps
// the story when the response begins.
func (s *stories) keep(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(in *http.Request) (*http.Response, error) {
		one := &story{id: idOf(in.Context()), asked: new(endpick.Receipt)}
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

func (s *stories) add(one *story) {
	one.settle(s.health)
	end := one.end.Load()
	if one.receipt.Number == 0 && end == nil {
		return // a list of models, for which no decision is made
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if end.is(endpick.Refused) {
		s.refused = appended(s.refused, one, s.most)
	} else {
		s.newest = appended(s.newest, one, s.most)
	}
}

// observe records how a request has ended, and returns its story; nil: it has none.
func (s *stories) observe(r *transport.Observation) *story {
	one := storyOf(r.In.Context())
	if one == nil {
		return nil
	}
	one.settle(s.health)
	end := newEnding(r)
	one.end.Store(end)
	if end.is(endpick.Failed) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failed = appended(s.failed, one, s.most)
	}
	return one
}

func appended(all []*story, one *story, most int) []*story {
	if len(all) >= most {
		all = slices.Delete(all, 0, len(all)-most+1)
	}
	return append(all, one)
}

// last returns the kept stories, newest first.
func (s *stories) last() (newest, failed, refused []*story) {
	s.mu.Lock()
	defer s.mu.Unlock()
	newest, failed, refused = slices.Clone(s.newest), slices.Clone(s.failed), slices.Clone(s.refused)
	for _, all := range [][]*story{newest, failed, refused} {
		slices.Reverse(all)
	}
	return newest, failed, refused
}
