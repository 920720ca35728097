package endpick_test

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/require"
)

// clock is a clock that tests set. It deliberately starts at Unix 0, which is a
// time like any other.
type clock struct{ nanos atomic.Int64 }

func (c *clock) Now() time.Time          { return time.Unix(0, c.nanos.Load()) }
func (c *clock) advance(d time.Duration) { c.nanos.Add(int64(d)) }

// newRouter returns a router with a clock of its own.
func newRouter(config endpick.Config) (*endpick.Router, *clock) {
	c := new(clock)
	config.Clock = c.Now
	if config.Seed == 0 {
		config.Seed = 1
	}
	return rig.Must(endpick.New(config)), c
}

// named returns endpoints that serve everything.
func named(ids ...string) []endpick.Endpoint {
	endpoints := make([]endpick.Endpoint, len(ids))
	for i, id := range ids {
		endpoints[i].ID = id
	}
	return endpoints
}

func numbered(n int) []endpick.Endpoint {
	endpoints := make([]endpick.Endpoint, n)
	for i := range endpoints {
		endpoints[i].ID = fmt.Sprintf("e%d", i)
	}
	return endpoints
}

// status returns the status of one endpoint that has not been removed.
func status(t testing.TB, r *endpick.Router, id string) endpick.EndpointStatus {
	for _, s := range r.Endpoints() {
		if !s.Removed && s.Candidate.Endpoint.ID == id {
			return s
		}
	}
	require.Fail(t, "no such endpoint", id)
	return endpick.EndpointStatus{}
}

// requireQuiet checks that nothing is in flight anywhere.
func requireQuiet(t require.TestingT, r *endpick.Router) {
	stats := r.Stats()
	require.Zero(t, stats.OpenLeases)
	require.Zero(t, stats.RemovedOpen)
	require.Equal(t, stats.Routed, stats.Closed)
	for _, s := range r.Endpoints() {
		require.Zero(t, s.Candidate.InFlight, s.Candidate.Endpoint.ID)
	}
}

// Stages as functions.

type matchFunc func(*endpick.Request, *endpick.Candidate) int

func (f matchFunc) Match(req *endpick.Request, candidates []endpick.Candidate) {
	for i := range candidates {
		candidates[i].PrefixTokens = f(req, &candidates[i])
	}
}

// holds is a matcher: every endpoint holds so many tokens.
func holds(tokens int) matchFunc {
	return func(*endpick.Request, *endpick.Candidate) int { return tokens }
}

type predictFunc func(*endpick.Request, *endpick.Candidate) endpick.Prediction

func (f predictFunc) Predict(req *endpick.Request, candidates []endpick.Candidate) {
	for i := range candidates {
		candidates[i].Prediction = f(req, &candidates[i])
	}
}

// expects is a predictor of the time to first token, and of nothing else.
func expects(ttft time.Duration) predictFunc {
	return func(*endpick.Request, *endpick.Candidate) endpick.Prediction {
		return endpick.Prediction{Has: endpick.TTFT, TTFT: ttft}
	}
}

type admitFunc func(*endpick.Request) error

func (f admitFunc) Admit(req *endpick.Request, _ []endpick.Candidate) error { return f(req) }

type filterFunc func([]endpick.Candidate) []endpick.Candidate

func (filterFunc) Name() string { return "filter" }
func (f filterFunc) Filter(_ *endpick.Request, c []endpick.Candidate) []endpick.Candidate {
	return f(c)
}

// keepIf is a filter that keeps the candidates for which f is true.
func keepIf(f func(*endpick.Candidate) bool) filterFunc {
	return func(c []endpick.Candidate) []endpick.Candidate { return endpick.Keep(c, f) }
}

type scoreFunc func(*endpick.Request, *endpick.Candidate) float64

func (scoreFunc) Name() string { return "score" }
func (f scoreFunc) Score(req *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i := range candidates {
		dst[i] = f(req, &candidates[i])
	}
}

type pickFunc func(*endpick.Request, []endpick.Candidate, []float64) int

func (f pickFunc) Pick(req *endpick.Request, c []endpick.Candidate, s []float64) int {
	return f(req, c, s)
}

// scoredBy is the policy with these scorers, of equal weight.
func scoredBy(scorers ...endpick.Scorer) (p endpick.Policy) {
	for _, s := range scorers {
		p.Scorers = append(p.Scorers, endpick.Weighted{Scorer: s, Weight: 1})
	}
	return p
}

// by is the policy with this scorer.
func by(score func(*endpick.Request, *endpick.Candidate) float64) endpick.Policy {
	return scoredBy(scoreFunc(score))
}

// byID is the policy with a scorer that knows the scores of endpoints.
func byID(scores map[string]float64) endpick.Policy {
	return by(func(_ *endpick.Request, c *endpick.Candidate) float64 { return scores[c.Endpoint.ID] })
}

// leastLoaded prefers the smallest batch.
func leastLoaded(_ *endpick.Request, c *endpick.Candidate) float64 { return 1 / (1 + c.BatchSize()) }

// spy is a scorer and observer that complains about events out of order.
type spy struct {
	mu     sync.Mutex
	open   map[endpick.LeaseRef]*heard
	closed []heard
	gone   []endpick.EndpointRef
	faults []string
}

// heard is what a spy has observed of one lease.
type heard struct {
	key     endpick.LeaseRef
	ref     endpick.EndpointRef
	first   bool
	event   endpick.Event // of Done
	outcome endpick.Outcome

	candidates int // from which it was chosen
}

// latencies are TTFT, TPOT and E2E; −1: not measured.
func (h *heard) latencies() (all []time.Duration) {
	for _, measure := range []func() (time.Duration, bool){h.event.TTFT, h.event.TPOT, h.event.E2E} {
		if d, ok := measure(); ok {
			all = append(all, d)
		} else {
			all = append(all, -1)
		}
	}
	return all
}

func (*spy) Name() string { return "spy" }

func (*spy) Score(_ *endpick.Request, candidates []endpick.Candidate, dst []float64) {
	for i := range candidates {
		dst[i] = 0.5
	}
}

func (s *spy) fault(format string, args ...any) {
	s.faults = append(s.faults, fmt.Sprintf(format, args...))
}

func (s *spy) Routed(e *endpick.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[endpick.LeaseRef]*heard{}
	}
	if s.open[e.Lease] != nil {
		s.fault("%v is routed twice", e.Lease)
	}
	if len(e.Candidates) == 0 {
		s.fault("%v is routed without candidates", e.Lease)
	}
	s.open[e.Lease] = &heard{key: e.Lease, ref: e.Candidate.Ref, candidates: len(e.Candidates)}
}

func (s *spy) FirstToken(e *endpick.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.open[e.Lease]
	switch {
	case h == nil:
		s.fault("first token of %v, which is not open", e.Lease)
	case h.first:
		s.fault("second first token of %v", e.Lease)
	default:
		h.first = true
	}
}

func (s *spy) Done(e *endpick.Event, o *endpick.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.open[e.Lease]
	if h == nil {
		s.fault("%v is done, and was not open", e.Lease)
		return
	}
	delete(s.open, e.Lease)
	request := *e.Request
	h.event, h.outcome = *e, *o
	h.event.Request = &request
	s.closed = append(s.closed, *h)
}

func (s *spy) EndpointRemoved(ref endpick.EndpointRef) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = append(s.gone, ref)
}

// take returns the leases that were closed since the last call.
func (s *spy) take() []heard {
	s.mu.Lock()
	defer s.mu.Unlock()
	closed := s.closed
	s.closed = nil
	return closed
}

var nan, inf = math.NaN(), math.Inf(1)
