package engine

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A listener from the beginning knows exactly what is cached, and learns nothing of a
// step before the step has ended.
func TestCacheEventsTellTheCache(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	e, err := New(Config{Blocks: 120, MaxBatchedTokens: 256, CacheEvents: true})
	require.NoError(t, err)
	blocks := func() (hashes []uint64) {
		h := uint64(r.IntN(3))
		for range 1 + r.IntN(30) {
			h = h*31 + uint64(r.IntN(2)) + 7
			hashes = append(hashes, h)
		}
		return hashes
	}
	known := map[uint64]bool{}
	evicted, latest := 0, time.Duration(0)
	hear := func(now time.Duration) {
		for _, c := range e.CacheEvents(now, nil) {
			require.LessOrEqual(t, c.At, now)
			require.GreaterOrEqual(t, c.At, latest, "in the order of time")
			latest = c.At
			require.True(t, !c.HasParent || known[c.Parent] || c.Removed)
			for _, h := range c.Hashes {
				require.Equal(t, c.Removed, known[h])
				known[h] = !c.Removed
				if c.Removed {
					delete(known, h)
					evicted++
				}
			}
		}
	}
	now := time.Duration(0)
	for id := uint64(1); id < 2000; id++ {
		b := blocks()
		require.NoError(t, e.Submit(now, Request{ID: id, PromptTokens: 16*len(b) - r.IntN(16), OutputTokens: 1 + r.IntN(40), Blocks: b}))
		for range r.IntN(6) {
			at, busy := e.NextEvent()
			if !busy {
				break
			}
			now = at
			e.Advance(now, nil)
			hear(now)
		}
	}
	for at, busy := e.NextEvent(); busy; at, busy = e.NextEvent() {
		now = at
		e.Advance(now, nil)
	}
	hear(now)
	cached := map[uint64]bool{}
	for _, run := range e.cache.heads {
		for _, h := range run.hashes {
			cached[h] = true
		}
	}
	require.Equal(t, cached, known)
	require.Greater(t, evicted, 1000)
}
