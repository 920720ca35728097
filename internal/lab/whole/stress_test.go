package whole

import (
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/stretchr/testify/assert"
)

// Every call of a router at once, on two endpoints that come and go, so that
// counters collide, with a clock that is set back and leaps ahead: the race detector finds nothing, and at the end nothing is in
// flight. With ENDPICK_LONG a hundred times as long.
func TestInvariantStress(t *testing.T) {
	rounds := 400
	if os.Getenv("ENDPICK_LONG") != "" {
		rounds *= 100
	}
	config := rig.Must(all.PredictedLatency(all.PredictedLatencyConfig{
		Index: prefix.IndexConfig{MaxBytes: indexBytes}, Latency: predict.LatencyConfig{Trees: 4, MaxModels: mostModels},
	}))
	var ahead atomic.Int64
	config.Clock = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	config.Endpoints = []endpick.Endpoint{{ID: "a"}, {ID: "b"}, {ID: "c"}}
	config.LeaseTimeout = time.Hour
	other := all.LMetric().Policy
	other.Matcher = config.Policy.Matcher
	policies := []endpick.Policy{config.Policy, other}
	router := rig.Must(endpick.New(config))

	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range rounds {
				lease, err := router.Route(endpick.Request{
					Model: []string{"", "m"}[i%2], Blocks: prompt(i%3, 1+i%9), Stream: i%3 > 0, Tenant: []string{"x", "y"}[g%2],
					SLO: endpick.SLO{TPOT: time.Duration(i%2) * time.Second},
				})
				if !assert.NoError(t, err) {
					return
				}
				if i%7 == 0 {
					continue // never closed
				}
				var both sync.WaitGroup
				both.Go(func() {
					lease.FirstToken()
					lease.Tokens(2)
					lease.Candidate()
					lease.Done(endpick.Outcome{OutputTokens: 2, HasCachedTokens: true, CachedTokens: 16})
				})
				lease.Tokens(i % 3)
				lease.Done(endpick.Outcome{Status: endpick.Status(i % 3), Blocks: prompt(i%3, 2+i%9)})
				both.Wait()
				assert.False(t, lease.Done(endpick.Outcome{}))
			}
		})
	}
	background := func(do func(i int)) {
		all.Go(func() {
			for i := range rounds {
				do(i)
			}
		})
	}
	background(func(i int) {
		id := []string{"b", "c"}[i%2]
		switch i % 7 {
		case 0:
			router.Remove(id)
		case 1:
			router.Add(endpick.Endpoint{ID: id, Models: []string{"m"}})
		case 2:
			router.Update(endpick.Endpoint{ID: id})
		case 3:
			router.Drain(id)
		case 4:
			router.Resume(id)
		case 5:
			assert.NoError(t, router.SetEndpoints([]endpick.Endpoint{{ID: "a"}, {ID: id}}))
		case 6:
			assert.NoError(t, router.SetPolicy(policies[i%2]))
		}
	})
	background(func(i int) {
		id := []string{"a", "b", "c"}[i%3]
		mark := router.Snapshot(id)
		router.Report(id, endpick.Load{Waiting: float64(i % 5), Running: float64(i % 7), KVUsage: float64(i%11) / 10, Snapshot: mark})
	})
	background(func(i int) {
		for _, e := range router.Endpoints() {
			assert.GreaterOrEqual(t, e.Candidate.InFlight.Requests, 0)
			assert.GreaterOrEqual(t, e.Candidate.InFlight.ContextTokens, 0)
		}
		router.AppendCandidates(nil)
		router.Ref("a")
		router.Sweep(config.Clock())
		router.Stats()
		ahead.Store(int64(i/20%3-1) * int64(time.Hour)) // back and forth, while all else goes on
	})
	all.Wait()
	ahead.Add(int64(3 * time.Hour)) // so that silent leases are found in time
	router.Sweep(config.Clock())
	for _, e := range router.Endpoints() {
		assert.False(t, e.Removed)
		assert.Equal(t, endpick.InFlight{}, e.Candidate.InFlight)
	}
	s := router.Stats()
	assert.Equal(t, []uint64{0, 0, 0, uint64(4 * rounds)}, []uint64{uint64(s.OpenLeases), uint64(s.RemovedOpen), s.Panics, s.Routed})
	assert.Equal(t, s.Routed, s.Closed)
}
