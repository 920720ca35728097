package endpick_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// slots is a stage with state for each endpoint, kept as the package
// documentation says. It complains about old state in a slot.
type slots struct {
	spy
	mu    sync.Mutex
	known map[uint32]slotState
}

type slotState struct {
	generation uint32
	id         string
}

func (s *slots) Routed(e *endpick.Event) {
	s.spy.Routed(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	ref, id := e.Candidate.Ref, e.Candidate.Endpoint.ID
	switch known := s.known[ref.Slot]; {
	case ref.Generation == known.generation && id != known.id:
		s.fault("slot %d of generation %d is %s and %s", ref.Slot, ref.Generation, known.id, id)
	case ref.Generation > known.generation:
		s.known[ref.Slot] = slotState{ref.Generation, id}
	case ref.Generation < known.generation:
		s.fault("slot %d: a lease of generation %d after one of %d", ref.Slot, ref.Generation, known.generation)
	}
}

// Endpoints are added, removed and added again, policies are swapped and leases
// are lost while many goroutines route. No request fails while there is an
// endpoint, none is lost, and no old state survives.
func TestEndpointChurnUnderLoad(t *testing.T) {
	const stable, total = 2, 8 // e0 and e1 always stay
	stage := &slots{known: map[uint32]slotState{}}
	policies := []endpick.Policy{
		{Scorers: []endpick.Weighted{{Scorer: scoreFunc(leastLoaded), Weight: 2}, {Scorer: stage, Weight: 1}}},
		{Scorers: []endpick.Weighted{{Scorer: stage, Weight: 1}}, Picker: endpick.PowerOfTwo{}},
		{
			Filters:   []endpick.Filter{keepIf(func(c *endpick.Candidate) bool { return c.InFlight.Requests < 3 })},
			Scorers:   []endpick.Weighted{{Scorer: stage, Weight: 1}},
			Picker:    endpick.WeightedRandom{},
			Predictor: expects(time.Millisecond),
		},
	}
	r, c := newRouter(endpick.Config{Endpoints: numbered(total), Policy: policies[0], LeaseTimeout: time.Second})

	requests := 1000
	if testing.Short() {
		requests = 300
	}
	var routing, others sync.WaitGroup
	var stop atomic.Bool
	var negative atomic.Int64
	var lost atomic.Int64
	for g := range 4 {
		routing.Go(func() {
			var open []endpick.Lease
			for i := range requests {
				n := g*requests + i
				l, err := r.Route(endpick.Request{InputTokens: n%700 + 1, Stream: n%3 > 0})
				if !assert.NoError(t, err) {
					return
				}
				switch n % 7 {
				case 0:
					lost.Add(1) // nobody will ever close it
					continue
				case 1:
					l.FirstToken()
				case 2:
					l.Tokens(n % 50)
				}
				open = append(open, l)
				if len(open) > n%5 {
					open[0].Tokens(1)
					open[0].Done(endpick.Outcome{Status: endpick.Status(n % 3)})
					open = open[1:]
				}
			}
			for _, l := range open {
				l.Done(endpick.Outcome{})
			}
		})
	}
	background := func(do func(i int)) {
		others.Go(func() {
			for i := 0; !stop.Load(); i++ {
				do(i)
				time.Sleep(20 * time.Microsecond)
			}
		})
	}
	background(func(i int) {
		id := fmt.Sprintf("e%d", stable+i%(total-stable))
		_ = r.Remove(id)
		assert.NoError(t, r.Add(endpick.Endpoint{ID: id, Labels: map[string]string{"life": fmt.Sprint(i)}}))
	})
	background(func(i int) {
		id := fmt.Sprintf("e%d", 1+i%(total-1))
		_ = r.Drain(id)
		_ = r.Update(endpick.Endpoint{ID: id})
		_ = r.Resume(id)
	})
	background(func(i int) {
		id := fmt.Sprintf("e%d", i%total)
		mark := r.Snapshot(id)
		_ = r.Report(id, endpick.Load{Waiting: float64(i % 4), Running: 3, KVUsage: 0.5, Snapshot: mark})
	})
	background(func(i int) {
		assert.NoError(t, r.SetPolicy(policies[i%len(policies)]))
		c.advance(time.Millisecond)
	})
	background(func(int) {
		for _, s := range r.Endpoints() {
			f := s.Candidate.InFlight
			if min(f.Requests, f.Prefilling, f.PrefillTokens, f.ContextTokens, f.OutputTokens) < 0 ||
				f.Prefilling > f.Requests || min(s.Candidate.Waiting, s.Candidate.Running) < 0 {
				negative.Add(1)
			}
		}
		r.Stats()
	})
	routing.Wait()
	stop.Store(true)
	others.Wait()

	c.advance(time.Hour)
	r.Sweep(c.Now())
	requireQuiet(t, r)
	stats := r.Stats()
	assert.Equal(t, uint64(4*requests), stats.Routed, "every request found an endpoint")
	assert.GreaterOrEqual(t, stats.Reaped, uint64(lost.Load()))
	assert.Equal(t, total, stats.Endpoints)
	assert.Zero(t, stats.StageErrors)
	assert.Zero(t, negative.Load())
	assert.Empty(t, stage.faults)
	assert.Empty(t, stage.open)
	assert.Len(t, stage.closed, 4*requests)
	require.Positive(t, lost.Load())

	// No slot has leaked: there are no more than were ever in use.
	most := uint32(0)
	for slot := range stage.known {
		most = max(most, slot)
	}
	for i := total; i <= int(most); i++ {
		require.NoError(t, r.Add(endpick.Endpoint{ID: fmt.Sprintf("e%d", i)}))
	}
	for _, s := range r.Endpoints() {
		assert.LessOrEqual(t, s.Candidate.Ref.Slot, most+total, "slots are used again")
	}
}

// The router itself, in all orders of calls: one request streams and one does not,
// leases are closed twice and after they were reaped, while their endpoint is removed
// and added again.
func TestCallsInAllInterleavings(t *testing.T) {
	n := 0
	for order := range rig.Orders(3, 2, 2, 1) {
		if n++; rig.Race && n%50 != 0 {
			continue // there is only one goroutine
		}
		now := time.Unix(1000, 0)
		heard := new(spy)
		r := rig.Must(endpick.New(endpick.Config{
			Seed: 1, Clock: func() time.Time { return now }, LeaseTimeout: time.Minute, Endpoints: named("a"), Policy: scoredBy(heard),
		}))
		var leases [2]endpick.Lease
		present, routed := true, 0
		route := func(i int, stream bool) {
			lease, err := r.Route(endpick.Request{InputTokens: 100, Stream: stream})
			require.Equal(t, present, err == nil, "%v: %v", order, err)
			if leases[i] = lease; err == nil {
				routed++
			}
		}
		steps := [][]func(){
			{func() { route(0, true) }, func() { leases[0].Tokens(3) }, func() { leases[0].Done(endpick.Outcome{}); require.False(t, leases[0].Done(endpick.Outcome{})) }},
			{func() { route(1, false) }, func() { leases[1].Done(endpick.Outcome{Status: endpick.Canceled}) }},
			{func() { require.NoError(t, r.Remove("a")); present = false }, func() { require.NoError(t, r.Add(endpick.Endpoint{ID: "a"})); present = true }},
			{func() { now = now.Add(time.Hour); r.Sweep(now) }},
		}
		var at [4]int
		for _, thread := range order {
			steps[thread][at[thread]]()
			at[thread]++
			var requests, prefilling, tokens int
			for _, e := range r.Endpoints() {
				f := e.Candidate.InFlight
				requests, prefilling, tokens = requests+f.Requests, prefilling+f.Prefilling, tokens+f.ContextTokens
			}
			require.Equal(t, r.Stats().OpenLeases, requests, "%v", order)
			require.Equal(t, 100*requests, tokens, "%v", order)
			require.LessOrEqual(t, prefilling, requests, "%v", order)
			require.Len(t, heard.closed, routed-requests, "%v", order)
		}
		require.Zero(t, r.Stats().OpenLeases, "%v", order)
		require.Empty(t, heard.faults, "%v", order)
		for _, e := range r.Endpoints() {
			require.Zero(t, e.Candidate.InFlight, "%v", order)
			require.False(t, e.Removed, "%v: the one that has gone is still there", order)
		}
	}
	assert.Equal(t, 1680, n)
}
