package prefix_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

// Concurrent readers and writers, for the race detector; what is read is never more than
// was ever held. Afterwards everything is as if they had come one after the other.
func TestReadersBesideWriters(t *testing.T) {
	x, err := prefix.NewIndex(prefix.IndexConfig{BlocksPerEndpoint: 40, MaxBytes: 1 << 20})
	require.NoError(t, err)
	const endpoints, writers, readers, times = 6, 3, 3, 400
	fleet := make([]endpick.Candidate, endpoints)
	for i := range fleet {
		fleet[i] = endpick.Candidate{Endpoint: &endpick.Endpoint{}, Ref: endpick.EndpointRef{Slot: uint32(i), Generation: 1}}
	}
	prompt := func(n int) []uint64 {
		blocks := make([]uint64, 10+n%7)
		for i := range blocks {
			blocks[i] = uint64(i + 1)
			if i >= 5 {
				blocks[i] += uint64(n%11+1) << 32
			}
		}
		return blocks
	}
	now := time.Unix(1000, 0)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for n := range times {
				req := endpick.Request{Blocks: prompt(n * (w + 1)), Tenant: string(rune('a' + w))}
				req.InputTokens = 16 * len(req.Blocks)
				e := endpick.Event{
					Request: &req, Candidate: &fleet[n%endpoints], Now: now, RoutedAt: now,
					Lease: endpick.LeaseRef{Slot: uint32(w), Generation: uint32(n + 1)},
				}
				prefix.Listen(x).Routed(&e)
				req.Blocks = nil
				if n%3 == 0 {
					e.FirstTokenAt = now
					prefix.Listen(x).FirstToken(&e)
				}
				prefix.Listen(x).Done(&e, &endpick.Outcome{Status: endpick.Status(n % 4)})
			}
		})
	}
	for r := range readers {
		wg.Go(func() {
			mine := append([]endpick.Candidate(nil), fleet...)
			for n := range times {
				req := endpick.Request{Blocks: prompt(n + r)}.At(now, 1, 1)
				x.Match(&req, mine)
				for i := range mine {
					if most := 16 * len(req.Blocks); mine[i].PrefixTokens < 0 || mine[i].PrefixTokens >= most {
						t.Errorf("%d tokens of %d", mine[i].PrefixTokens, most)
					}
				}
			}
		})
	}
	wg.Wait()
	stats := x.Stats()
	require.Len(t, stats.Endpoints, endpoints)
	require.Positive(t, stats.Blocks)
	for _, e := range stats.Endpoints {
		require.Zero(t, e.Pending, "no lease is open")
		require.LessOrEqual(t, e.Held, 40)
	}
}
