package whole

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/predict"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/scorer"
	"github.com/endpick/endpick/scorer/preset/all"
	"github.com/endpick/endpick/slo/quota"
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
	if rig.Race {
		t.Skip("it runs in one goroutine, and takes long")
	}
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
		// Twice, to release what sync.Pool keeps.
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	flood()
	before, after := flood(), flood()
	t.Logf("%.1f MB, and %.1f MB after %d requests more", float64(before)/1e6, float64(after)/1e6, requests)
	// A table that kept names would have grown by about 3 MB.
	require.LessOrEqual(t, after-before, int64(1<<19), "the heap has grown")
	runtime.KeepAlive(router)
}
