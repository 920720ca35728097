package prefix_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// found counts how many of the prompts an endpoint holds completely.
func (s *shelf) found(slot int, prompts [][]uint64) (n int) {
	for _, p := range prompts {
		if s.match(p...)[slot] == 16*len(p) {
			n++
		}
	}
	return n
}

// serveAll sends n new prompts of so many blocks for a tenant.
func (s *shelf) serveAll(slot int, tenant string, n, blocks int) (prompts [][]uint64) {
	for range n {
		prompts = append(prompts, s.fresh(blocks))
		s.serve(slot, tenant, prompts[len(prompts)-1]...)
	}
	return prompts
}

// However much a tenant sends, what others hold within their shares remains.
func TestTenantPushesOutItsOwn(t *testing.T) {
	s := newShelf(t, 1, prefix.IndexConfig{BlocksPerEndpoint: 1000})
	mine := s.serveAll(0, "small", 20, 20)
	s.serveAll(0, "flood", 500, 20)
	assert.Equal(t, 20, s.found(0, mine))
	assert.Equal(t, 1000, s.Stats().Endpoints[0].Held, "and what is free is anybody's")
}

func TestTenantGivesWay(t *testing.T) {
	for share, want := range map[float64]int{0: 500, 0.25: 250, 1: 1000} {
		t.Run(fmt.Sprint("share=", share), func(t *testing.T) {
			s := newShelf(t, 1, prefix.IndexConfig{BlocksPerEndpoint: 1000, TenantShare: share})
			first := s.serveAll(0, "first", 50, 20)
			assert.Equal(t, 50, s.found(0, first), "a tenant alone may have it all")
			for range 3 {
				s.serve(0, "first", first[0]...) // used all the time
				assert.Equal(t, want/20, s.found(0, s.serveAll(0, "second", want/20, 20)))
			}
			kept := 25
			switch share {
			case 0.25:
				kept = 37 // 13 prompts of the second, 740 blocks of the first
			case 1:
				kept = 0
			}
			assert.InDelta(t, kept, s.found(0, first), 1)
		})
	}
}

// Engines don't know tenants: if everything that its cache holds is remembered,
// a tenant may have it all, and lose it all.
func TestTenantsInACacheThatIsKnown(t *testing.T) {
	for _, tc := range []struct {
		name         string
		kv, most     int // tokens, blocks
		first, flood int // prompts found
	}{
		{"all of it", 1600, 0, 0, 10},
		{"all of it, no more than is remembered", 1600, 100, 0, 10},
		{"more than is remembered", 1616, 100, 5, 5},
		{"nobody knows", 0, 100, 5, 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newShelf(t, 1, prefix.IndexConfig{BlocksPerEndpoint: tc.most})
			s.fleet[0].Endpoint.KVTokens = tc.kv
			first := s.serveAll(0, "first", 5, 10)
			flood := s.serveAll(0, "flood", 10, 10)
			assert.Equal(t, tc.first, s.found(0, first))
			assert.Equal(t, tc.flood, s.found(0, flood))
		})
	}
}

// A tenant above its share gives way to newcomers, before any other tenant
// does.
func TestTenantWithTheMostGivesWay(t *testing.T) {
	s := newShelf(t, 1, prefix.IndexConfig{BlocksPerEndpoint: 100})
	oldest := s.serveAll(0, "oldest", 1, 10)
	most := s.serveAll(0, "most", 9, 10)
	mine := s.serveAll(0, "mine", 3, 10)
	assert.Equal(t, []int{1, 6, 3}, []int{s.found(0, oldest), s.found(0, most), s.found(0, mine)})
	// The same for the memory of all.
	s = newShelf(t, 3, prefix.IndexConfig{MaxBytes: 1 << 20, BlocksPerEndpoint: 1 << 20})
	oldest = s.serveAll(0, "oldest", 10, 100)
	s.serveAll(1, "most", 200, 1000)
	mine = s.serveAll(0, "mine", 10, 1000)
	assert.Equal(t, []int{10, 10}, []int{s.found(0, oldest), s.found(0, mine)})
}

// A head that tenants share belongs to none: a tenant that floods loses its own
// prompts, not the head.
func TestTenantsShareHeads(t *testing.T) {
	s := newShelf(t, 1, prefix.IndexConfig{BlocksPerEndpoint: 200})
	head := s.fresh(50)
	s.serve(0, "first", head...)
	mine := append(head[:50:50], s.fresh(10)...)
	s.serve(0, "second", mine...)
	for range 50 {
		s.serve(0, "first", s.fresh(20)...)
	}
	assert.Equal(t, []int{16 * 60}, s.match(mine...))
}

// The same for the bytes of all endpoints: short prompts, which take the most,
// evict the flood's own.
func TestTenantFloodsTheMemory(t *testing.T) {
	s := newShelf(t, 4, prefix.IndexConfig{MaxBytes: 1 << 20})
	mine := s.serveAll(0, "small", 40, 50)
	mine2 := s.serveAll(3, "small", 40, 50)
	for i := range 30_000 {
		s.serve(i%4, "flood", s.fresh(1)...)
		if i%1000 == 0 {
			require.LessOrEqual(t, s.Stats().Bytes, int64(1<<20))
		}
	}
	assert.Positive(t, s.Stats().Evicted)
	assert.Equal(t, 40, s.found(0, mine))
	assert.Equal(t, 40, s.found(3, mine2))
}

// Invented names leave nothing behind.
func TestTenantNamesAreForgotten(t *testing.T) {
	s := newShelf(t, 1, prefix.IndexConfig{BlocksPerEndpoint: 100})
	s.serve(0, "", s.fresh(100)...)
	before := s.Stats().Bytes
	for i := range 5000 {
		s.end(s.begin(0, fmt.Sprint("invented", i), s.fresh(3)...), endpick.Failed)
	}
	assert.InDelta(t, before, s.Stats().Bytes, 40_000)
	for i := range 5000 {
		s.serve(0, fmt.Sprint("invented", i), s.fresh(10)...)
	}
	assert.InDelta(t, before, s.Stats().Bytes, 40_000)
}

// After a flood of prompts of one block there is as much room as before.
func TestMemoryComesBackAfterAFlood(t *testing.T) {
	pairs := func(flood int) int {
		s := newShelf(t, 20, prefix.IndexConfig{MaxBytes: 4 << 20})
		for i := range flood {
			s.serve(i%20, "", s.fresh(1)...)
		}
		for i := range 16_000 {
			s.serve(i%20, "", s.fresh(100)...)
			if i%100 == 0 {
				require.LessOrEqual(t, s.Stats().Bytes, int64(4<<20))
			}
		}
		return s.Stats().Pairs
	}
	fresh := pairs(0)
	assert.Greater(t, pairs(100_000), fresh*95/100)
}

// A request keeps its own prompt when other endpoints' blocks fill the memory.
func TestMemoryIsTakenFromOthers(t *testing.T) {
	for _, share := range []float64{0.5, 1} {
		t.Run(fmt.Sprint("share=", share), func(t *testing.T) {
			s := newShelf(t, 3, prefix.IndexConfig{MaxBytes: 1 << 20, BlocksPerEndpoint: 1 << 20, TenantShare: share})
			for slot := range 2 {
				s.serveAll(slot, "", 150, 1000)
			}
			for range 5 {
				long := s.fresh(6000)
				s.serve(2, "", long...)
				assert.Equal(t, 16*6000, s.match(long...)[2])
			}
		})
	}
}

// Endpoints that hold nothing yet, because all is in prefill there, have nothing to give.
func TestMemoryIsTakenFromWhoHasIt(t *testing.T) {
	const most = 1 << 20
	s := newShelf(t, 10, prefix.IndexConfig{MaxBytes: most, BlocksPerEndpoint: 1 << 20, TenantShare: 1})
	for slot := range 8 {
		s.begin(slot, "", s.fresh(1)...)
	}
	s.serveAll(8, "", 150, 1000)
	s.serve(9, "", s.fresh(6000)...)
	assert.LessOrEqual(t, s.Stats().Bytes, int64(most*7/8+4000), "the rest is for prompts in prefill, of which there are few")
}

// The limit of an endpoint is that of the last prompt that it computed.
func TestBoundFollowsTheEndpoint(t *testing.T) {
	s := newShelf(t, 1, prefix.IndexConfig{})
	s.fleet[0].Endpoint.KVTokens = 1600
	s.serveAll(0, "", 20, 10)
	assert.Equal(t, 100, s.Stats().Endpoints[0].Held)
	smaller := *s.fleet[0].Endpoint
	smaller.KVTokens = 480
	s.fleet[0].Endpoint = &smaller
	e := s.begin(0, "", s.fresh(10)...)
	assert.Equal(t, [2]int{100, 100}, [2]int{s.Stats().Endpoints[0].Held, s.Stats().Endpoints[0].Bound})
	s.end(s.begin(0, "", s.fresh(10)...), endpick.Failed)
	assert.Equal(t, [2]int{100, 100}, [2]int{s.Stats().Endpoints[0].Held, s.Stats().Endpoints[0].Bound})
	s.end(e, endpick.Completed)
	assert.Equal(t, [2]int{30, 30}, [2]int{s.Stats().Endpoints[0].Held, s.Stats().Endpoints[0].Bound})
}

// When the tenant that holds the most disappears with its endpoint, another one
// becomes the largest, even if the first one's slot is free.
func TestTheLargestTenantMayGo(t *testing.T) {
	s := newShelf(t, 2, prefix.IndexConfig{BlocksPerEndpoint: 10_000, MaxBytes: 1 << 20})
	for i := range 100 {
		s.serve(0, fmt.Sprint("tenant", i), s.fresh(1+i)...)
	}
	s.EndpointRemoved(s.fleet[0].Ref)
	mine := s.serveAll(1, "small", 20, 20)
	s.serveAll(1, "flood", 2000, 20)
	assert.Equal(t, 20, s.found(1, mine), "it is the flood that gives way")
}

// Slots are reused: conversations that grow and are evicted, in whatever order, don't
// take more memory over time.
func TestIndexIsAsSmallAfterLongChurn(t *testing.T) {
	s := newShelf(t, 10, prefix.IndexConfig{BlocksPerEndpoint: 500})
	random := rand.New(rand.NewPCG(1, 2))
	conversations := make([][]uint64, 200)
	play := func(requests int) int64 {
		for range requests {
			c := &conversations[random.IntN(len(conversations))]
			if random.IntN(8) == 0 || len(*c) > 250 {
				*c = nil
			}
			*c = append(*c, s.fresh(1+random.IntN(16))...)
			s.route(random.IntN(10), *c...)
		}
		return s.Stats().Bytes
	}
	early := play(20_000)
	assert.LessOrEqual(t, play(100_000), early+early/4)
}
