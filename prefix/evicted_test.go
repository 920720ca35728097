package prefix_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
)

// newCache is a shelf with one endpoint whose KV cache has so many blocks.
func newCache(t *testing.T, blocks int) *shelf {
	s := newShelf(t, 1, prefix.IndexConfig{})
	s.fleet[0].Endpoint = &endpick.Endpoint{ID: "a", KVTokens: 16 * blocks}
	return s
}

// evicted returns how many blocks of a prompt the endpoint is expected to hold, and how
// many of these it has probably evicted.
func (s *shelf) evicted(prompt []uint64) (held, evicted int) {
	s.match(prompt...)
	return s.fleet[0].PrefixTokens / 16, s.fleet[0].EvictedTokens / 16
}

// A cache of 100 blocks holds two prompts of 40, a before b. What requests under way need
// beyond the 20 free blocks is taken from the end of a, then from b.
func TestEvicted(t *testing.T) {
	for _, tc := range []struct {
		what               string
		generated          int // tokens of responses under way
		prefill            int // blocks of prompts in prefill
		running            string
		evictedA, evictedB int
	}{
		{"there is room", 0, 20, "", 0, 0},
		{"a prompt in prefill needs one too many", 0, 21, "", 1, 0},
		{"a response does", 16 * 21, 0, "", 1, 0},
		{"a block that is not full is none", 16*21 - 1, 0, "", 0, 0},
		{"both together", 16 * 10, 21, "", 11, 0},
		{"all of a", 16 * 60, 0, "", 40, 0},
		{"some of b, too", 16 * 67, 0, "", 40, 7},
		{"all", 16 * 1000, 0, "", 40, 40},
		{"a is in use, so b goes first", 16 * 27, 0, "a", 0, 7},
		{"b is in use", 16 * 27, 0, "b", 7, 0},
		{"what is in use stays", 16 * 1000, 0, "a", 0, 40},
	} {
		t.Run(tc.what, func(t *testing.T) {
			s := newCache(t, 100)
			prompts := map[string][]uint64{"a": s.fresh(40), "b": s.fresh(40)}
			s.serve(0, "", prompts["a"]...)
			s.serve(0, "", prompts["b"]...)
			if p := prompts[tc.running]; p != nil {
				s.begin(0, "", p...)
			}
			if tc.prefill > 0 {
				s.begin(0, "", s.fresh(tc.prefill)...)
			}
			s.fleet[0].InFlight.OutputTokens = tc.generated
			for name, want := range map[string]int{"a": tc.evictedA, "b": tc.evictedB} {
				held, evicted := s.evicted(prompts[name])
				assert.Equal(t, 40, held, "%s still belongs here", name)
				assert.Equal(t, want, evicted, name)
			}
		})
	}
}

// A prompt of which only the head is asked for, and one that goes on elsewhere: what is
// evicted is counted within the match.
func TestEvictedWithinTheMatch(t *testing.T) {
	s := newCache(t, 100)
	long := s.fresh(80)
	s.serve(0, "", long...)
	other := append(slices.Clone(long[:20]), s.fresh(10)...)
	s.serve(0, "", other...) // the head is newer
	s.fleet[0].InFlight.OutputTokens = 16 * 40
	// 30 blocks are newer than the 60 others, of which 30 have no room any more.
	for _, tc := range []struct{ asked, held, evicted int }{{80, 80, 30}, {60, 60, 10}, {50, 50, 0}, {40, 40, 0}} {
		held, evicted := s.evicted(long[:tc.asked])
		assert.Equal(t, []int{tc.held, tc.evicted}, []int{held, evicted}, "%+v", tc)
	}
	held, evicted := s.evicted(other)
	assert.Equal(t, []int{30, 0}, []int{held, evicted}, "all of it is new")

	// Now both ends have no room: 5 of the last 60 blocks of long and, since these are
	// newer, all 10 of other's own.
	s.serve(0, "", long...)
	s.serve(0, "", long[:20]...)
	s.fleet[0].InFlight.OutputTokens = 16 * 25
	held, evicted = s.evicted(other)
	assert.Equal(t, []int{30, 10}, []int{held, evicted})
	held, evicted = s.evicted(long)
	assert.Equal(t, []int{80, 5}, []int{held, evicted})
}

// The first token of a request that knows the engine's cache to be smaller says so.
func TestEvictedFromASmallerCache(t *testing.T) {
	s := newCache(t, 100)
	old := s.fresh(20)
	s.serve(0, "", old...)
	s.fleet[0].Endpoint = &endpick.Endpoint{ID: "a", KVTokens: 16 * 30}
	e := s.begin(0, "", s.fresh(10)...)
	s.fleet[0].InFlight.OutputTokens = 16 * 5
	_, evicted := s.evicted(old)
	assert.Zero(t, evicted, "there is room for 100")
	s.FirstToken(e)
	_, evicted = s.evicted(old)
	assert.Equal(t, 5, evicted)
}

// Of a cache whose size is not known, nothing is said.
func TestEvictedFromAnUnknownCache(t *testing.T) {
	for _, tokens := range []int{0, 16 * 1000} { // more than the index may hold is not all of it
		s := newShelf(t, 1, prefix.IndexConfig{BlocksPerEndpoint: 100})
		s.fleet[0].Endpoint = &endpick.Endpoint{ID: "a", KVTokens: tokens}
		p := s.fresh(80)
		s.serve(0, "", p...)
		s.fleet[0].InFlight.OutputTokens = 1 << 30
		held, evicted := s.evicted(p)
		assert.Equal(t, []int{80, 0}, []int{held, evicted}, tokens)
	}
}

// A stage may call Match with anything.
func TestEvictedIsBounded(t *testing.T) {
	s := newCache(t, 100)
	p := s.fresh(80)
	s.serve(0, "", p...)
	for _, n := range []int{math.MinInt, -1, math.MaxInt} {
		s.fleet[0].InFlight.OutputTokens, s.fleet[0].EvictedTokens = n, 7
		held, evicted := s.evicted(p)
		assert.Equal(t, 80, held)
		assert.Equal(t, max(min(n, 80), 0), evicted)
	}
	// The last token is computed again in any case.
	req := endpick.Request{Blocks: p, InputTokens: 16 * 80}
	s.Match(&req, s.fleet)
	assert.Equal(t, []int{16*80 - 1, 16*80 - 1}, []int{s.fleet[0].PrefixTokens, s.fleet[0].EvictedTokens})
	s.fleet[0].InFlight.OutputTokens = 16 * 30
	s.Match(&req, s.fleet)
	assert.Equal(t, []int{16*80 - 1, 16*10 - 1}, []int{s.fleet[0].PrefixTokens, s.fleet[0].EvictedTokens}, "70 blocks stay")
}

// Clients that read slowly keep their requests open, while others evict what these have
// sent. What is kept because of them has a bound.
func TestOpenRequestsKeepLittle(t *testing.T) {
	const most = 1 << 20
	s := newShelf(t, 10, prefix.IndexConfig{MaxBytes: most})
	mine := s.fresh(1000)
	s.serve(0, "other", mine...)
	for i := range 20_000 {
		e := s.begin(i%10, string(rune('a'+i/10%20)), s.fresh(1+i%3*20)...)
		s.FirstToken(e) // and no end
		if i%100 == 0 {
			require.LessOrEqual(t, s.Stats().Bytes-200*int64(i), int64(most), "besides what each open request takes")
		}
	}
	kept := 0
	for _, e := range s.Stats().Endpoints {
		assert.Zero(t, e.Pending)
		assert.Positive(t, e.Held)
		kept += e.Kept
	}
	assert.InDelta(t, most/8/10*21/61, kept, 500, "an eighth of the memory, 10 bytes for each block, and for a prompt of 21 on average as for 40 more")
	s.serve(0, "other", mine...)
	assert.Equal(t, 16_000, s.match(mine...)[0], "and others find room")
}

// The same of requests that stay in prefill: they repeat what others then evict.
func TestOpenPrefillsKeepLittle(t *testing.T) {
	const most = 1 << 20
	s := newShelf(t, 10, prefix.IndexConfig{MaxBytes: most, BlocksPerEndpoint: 100})
	mine := s.fresh(50)
	s.serve(9, "other", mine...)
	for i := range 4000 {
		prompt := s.fresh(90)
		s.serve(i%9, "", prompt...)
		s.begin(i%9, "", prompt...) // and neither a first token nor an end
		if i%100 == 0 {
			require.LessOrEqual(t, s.Stats().Bytes-200*int64(i), int64(most), "besides what each open request takes")
		}
	}
	for _, e := range s.Stats().Endpoints {
		assert.LessOrEqual(t, e.Kept, 100, "what its engine may hold")
		assert.Positive(t, e.Held)
	}
	assert.Equal(t, 800, s.match(mine...)[9])
}
