package whole

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/slo/quota"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Whatever happens, no table exceeds its bound.
func TestInvariantBounded(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt, options{})
		for i, s := range draw(rt) {
			s.request.Tenant, s.request.Session = fmt.Sprint("tenant ", i), fmt.Sprint("session ", i)
			if i%3 > 0 && s.kind == "route" {
				s.request.Model, s.request.Adapter = "", fmt.Sprint("adapter ", i)
				if len(s.request.Exclude) > 0 || s.request.InputTokens < 0 {
					continue
				}
				w.bounded(&s.request)
			}
			w.apply(step{kind: "sweep"})
			if s.kind != "route" {
				w.apply(s)
			}
			stats, index := w.router.Stats(), w.index.Stats()
			switch {
			case len(w.latency.Health()) > mostModels:
				w.failf("%d models are learned", len(w.latency.Health()))
			case index.Bytes > indexBytes+200*int64(stats.OpenLeases)+4096:
				w.failf("the index takes %d bytes", index.Bytes)
			case len(index.Endpoints) > stats.Endpoints+stats.RemovedOpen:
				w.failf("the index knows %d endpoints of %d", len(index.Endpoints), stats.Endpoints)
			}
		}
		w.closeAll()
	})
}

// bounded routes a request with an invented name.
func (w *world) bounded(req *endpick.Request) {
	d := w.route(*req)
	if d.lease != nil {
		d.lease.Tokens(5)
		if !d.lease.Done(endpick.Outcome{OutputTokens: 5}) {
			w.failf("a lease that was open can't be closed")
		}
		d.lease.closed = true
		w.notice()
	}
}

// Neither clients' inventions nor time take memory for good: doubling the number
// of invented names, prompts and endpoints does not increase it.
func TestInvariantBoundedMemory(t *testing.T) {
	rig.SkipUnderRace(t, "it runs in one goroutine, and takes long")
	limits := rig.Must(quota.New(quota.Config{Limits: func(string) quota.Limits { return quota.Limits{Rate: 1e9, Burst: 1e12} }}))
	config := rig.Must(all.PredictedLatency(all.PredictedLatencyConfig{
		Index:   prefix.IndexConfig{MaxBytes: indexBytes},
		Latency: predict.LatencyConfig{Synchronous: true, Trees: 1, Samples: 500, MaxModels: mostModels, RefitEvery: 1 << 20},
	}))
	config.Policy.Admitters = append(config.Policy.Admitters, limits)
	config.Policy.Filters = append(config.Policy.Filters, scorer.Hotspot(scorer.HotspotConfig{}))
	config.Policy.Scorers = append(config.Policy.Scorers, endpick.Weighted{Scorer: scorer.NoHitLRU(), Weight: 1})
	now := time.Unix(1_000_000, 0)
	config.Seed, config.Clock = 1, func() time.Time { return now }
	config.Endpoints = []endpick.Endpoint{{ID: "a"}, {ID: "b"}}
	router := rig.Must(endpick.New(config))

	const requests = 10_000
	number := 0
	flood := func() int64 {
		for range requests {
			number++
			name := func(of string) string { return fmt.Sprintf("%s of nobody who was ever here before, %d", of, number) }
			blocks := make([]uint64, 1+number%8)
			for i := range blocks {
				blocks[i] = endpick.Salt(fmt.Sprint(number, " ", i))
			}
			lease := rig.Must(router.Route(endpick.Request{
				Model: name("model"), Tenant: name("tenant"), Session: name("session"), Blocks: blocks, Stream: number%2 > 0,
				SLO: endpick.SLO{TTFT: time.Duration(1+number%1000) * time.Millisecond},
			}))
			now = now.Add(10 * time.Millisecond)
			if number%3 > 0 {
				lease.FirstToken()
			}
			if number%5 > 0 { // the others are never closed
				lease.Tokens(2)
				lease.Done(endpick.Outcome{Status: endpick.Status(number % 3), OutputTokens: 2, HasCachedTokens: true})
			}
			if number%500 == 0 {
				now = now.Add(time.Duration(number/500%3-1) * time.Hour) // set back, or a leap ahead
			}
			if number%50 == 0 {
				e := endpick.Endpoint{ID: name("endpoint"), Models: []string{name("model")}, Variant: name("variant")}
				require.NoError(t, router.Add(e))
				router.Report(e.ID, endpick.Load{Running: 1})
				require.NoError(t, router.Remove(e.ID))
			}
		}
		now = now.Add(time.Hour)
		router.Sweep(now)
		require.Zero(t, router.Stats().OpenLeases)
		return rig.Heap()
	}
	flood()
	before, after := flood(), flood()
	t.Logf("%.1f MB, and %.1f MB after %d requests more", float64(before)/1e6, float64(after)/1e6, requests)
	// A table that kept names would have grown by about 3 MB.
	require.LessOrEqual(t, after-before, int64(1<<19), "the heap has grown")
	runtime.KeepAlive(router)
}

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
