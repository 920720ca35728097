package prefix_test

import (
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
)

// shelf is an index with the candidates of a fleet.
type shelf struct {
	*prefix.Index
	prefix.Listener
	fleet []endpick.Candidate
	key   endpick.LeaseRef
	next  uint64   // block
	free  []uint32 // slots of leases
	slots uint32
}

func newShelf(t require.TestingT, endpoints int, config prefix.IndexConfig) *shelf {
	x := newIndex(t, config)
	return &shelf{Index: x, Listener: prefix.Listen(x), fleet: fleet(endpoints)}
}

func (s *shelf) route(slot int, blocks ...uint64) {
	s.key.Generation++
	req := endpick.Request{Blocks: blocks, InputTokens: 16*len(blocks) + 1}
	routed(s.Index, &req, &s.fleet[slot], s.key)
}

// match returns the tokens that each endpoint holds.
func (s *shelf) match(blocks ...uint64) []int {
	req := endpick.Request{Blocks: blocks, InputTokens: 16*len(blocks) + 1}
	s.Match(&req, s.fleet)
	var held []int
	for _, c := range s.fleet {
		held = append(held, c.PrefixTokens)
	}
	return held
}

func TestIndexMatchesHeadsOnly(t *testing.T) {
	s := newShelf(t, 3, prefix.IndexConfig{})
	s.route(0, 1, 2, 3, 4)
	s.route(1, 1, 2)
	s.route(2, 2, 3, 4)
	assert.Equal(t, []int{64, 32, 0}, s.match(1, 2, 3, 4))
	assert.Equal(t, []int{64, 32, 0}, s.match(1, 2, 3, 4, 5, 6))
	assert.Equal(t, []int{48, 32, 0}, s.match(1, 2, 3, 9))
	assert.Equal(t, []int{0, 0, 48}, s.match(2, 3, 4), "2, 3, 4 without the 1 before them are other blocks")
	assert.Equal(t, []int{0, 0, 0}, s.match(9, 1, 2))
	assert.Equal(t, []int{0, 0, 0}, s.match())
}

// After a removal in the middle of a path only its head counts.
func TestIndexEvictsLeavesFirst(t *testing.T) {
	s := newShelf(t, 1, prefix.IndexConfig{BlocksPerEndpoint: 6})
	s.route(0, 1, 2, 3, 4)
	s.route(0, 7, 8, 9) // one too many: 4 is evicted, the end of the oldest
	assert.Equal(t, []int{48}, s.match(1, 2, 3, 4))
	assert.Equal(t, []int{48}, s.match(7, 8, 9))
	s.route(0, 1, 2) // 3 is the oldest now
	s.route(0, 7, 8, 9, 10)
	assert.Equal(t, []int{32}, s.match(1, 2, 3, 4))
	s.route(0, 5)
	assert.Equal(t, []int{16}, s.match(1, 2, 3, 4), "5 is new, 2 was the oldest")
	assert.Equal(t, []int{64}, s.match(7, 8, 9, 10))
	assert.EqualValues(t, 3, s.Stats().Evicted)
}

func TestIndexBound(t *testing.T) {
	for _, tc := range []struct {
		name   string
		config prefix.IndexConfig
		kv     int
		block  float64
		want   int
	}{
		{"default", prefix.IndexConfig{}, 0, 0, 65_536},
		{"set", prefix.IndexConfig{BlocksPerEndpoint: 300}, 0, 0, 300},
		{"a small cache", prefix.IndexConfig{BlocksPerEndpoint: 300}, 160, 0, 10},
		{"a large cache", prefix.IndexConfig{BlocksPerEndpoint: 300}, 1 << 20, 0, 300},
		{"only the cache", prefix.IndexConfig{}, 320_000, 0, 20_000},
		{"blocks of text", prefix.IndexConfig{}, 320_000, 12.5, 25_600},
		{"less than a block", prefix.IndexConfig{}, 1, 0, 1},
		{"tiny blocks", prefix.IndexConfig{BlocksPerEndpoint: 300}, 1 << 20, math.SmallestNonzeroFloat64, 300},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newIndex(t, tc.config)
			c := endpick.Candidate{Ref: endpick.EndpointRef{Generation: 1}, Endpoint: &endpick.Endpoint{KVTokens: tc.kv}}
			blocks := make([]uint64, 70_000)
			for i := range blocks {
				blocks[i] = uint64(i) + 1
			}
			req := endpick.Request{Blocks: blocks, InputTokens: 16 * 70_000, BlockTokens: tc.block}
			routed(x, &req, &c, endpick.LeaseRef{Generation: 1})
			stats := x.Stats()
			assert.Equal(t, tc.want, stats.Pairs)
			assert.Equal(t, tc.want, stats.Endpoints[0].Bound)
			one := []endpick.Candidate{c}
			x.Match(&req, one)
			assert.Equal(t, min(int(float64(tc.want)*req.TokensPerBlock()), 16*70_000-1), one[0].PrefixTokens, "the head of a prompt that does not fit")
		})
	}
}

func TestIndexMatchIsAtMostThePrompt(t *testing.T) {
	s := newShelf(t, 1, prefix.IndexConfig{})
	s.route(0, 1, 2, 3)
	for _, tc := range []struct {
		input int
		block float64
		want  int
	}{
		{100, 0, 48}, {48, 0, 47}, {49, 0, 48}, {40, 0, 39}, {1, 0, 0},
		{0, 0, 47}, {0, 20, 59}, // unknown length: as long as its blocks
		{100, 13.5, 40}, {100, math.Inf(1), 99}, {0, math.Inf(1), math.MaxInt32 - 1}, {0, math.MaxFloat64, math.MaxInt32 - 1},
	} {
		req := endpick.Request{Blocks: []uint64{1, 2, 3}, InputTokens: tc.input, BlockTokens: tc.block}
		s.Match(&req, s.fleet)
		assert.Equal(t, tc.want, s.fleet[0].PrefixTokens, "%+v", tc)
	}
}

func TestIndexEndpointsAreIndependent(t *testing.T) {
	s := newShelf(t, 3, prefix.IndexConfig{})
	for slot := range 3 {
		s.route(slot, 1, 2, 3)
	}
	s.EndpointRemoved(s.fleet[1].Ref)
	assert.Equal(t, []int{48, 0, 48}, s.match(1, 2, 3))
	s.EndpointRemoved(s.fleet[1].Ref)
	s.route(1, 1, 2) // was pending when the endpoint was removed
	assert.Equal(t, []int{48, 0, 48}, s.match(1, 2, 3))

	s.fleet[1].Ref.Generation++
	assert.Equal(t, []int{48, 0, 48}, s.match(1, 2, 3), "another endpoint in the same slot")
	s.route(1, 1, 2)
	assert.Equal(t, []int{48, 32, 48}, s.match(1, 2, 3))
	old := s.fleet[1].Ref
	old.Generation--
	s.EndpointRemoved(old)
	assert.Equal(t, []int{48, 32, 48}, s.match(1, 2, 3), "late news of the one before")

	// A router with another policy meanwhile has not notified the index of the removal.
	s.fleet[0].Ref.Generation += 2
	s.route(0, 1)
	assert.Equal(t, []int{16, 32, 48}, s.match(1, 2, 3))
	assert.Equal(t, 6, s.Stats().Pairs)
}

func TestIndexIgnoresWhatItDoesNotKnow(t *testing.T) {
	s := newShelf(t, 2, prefix.IndexConfig{})
	req := endpick.Request{Blocks: []uint64{1}, InputTokens: 16}
	e := endpick.Event{Lease: endpick.LeaseRef{Slot: 9, Generation: 4}, Request: &req, Candidate: &s.fleet[0]}
	s.FirstToken(&e)
	s.Done(&e, &endpick.Outcome{HasCachedTokens: true})
	s.EndpointRemoved(endpick.EndpointRef{Slot: 7, Generation: 1})
	s.fleet[1].Ref = endpick.EndpointRef{}
	s.route(1, 1, 2)
	assert.Equal(t, []int{0, 0}, s.match(1, 2), "the zero Ref is nobody's")
	assert.Zero(t, s.Stats().Pairs)
}

// Endpoints that leave the path together need not be adjacent.
func TestIndexMatchesWhoLeavesAroundWhoStays(t *testing.T) {
	way := make([]uint64, 20)
	for i := range way {
		way[i] = uint64(i + 1)
	}
	for stays := range 5 {
		s := newShelf(t, 5, prefix.IndexConfig{})
		want := slices.Repeat([]int{160}, 5)
		want[stays] = 320
		for slot := range 5 {
			s.route(slot, way[:want[slot]/16]...)
		}
		assert.Equal(t, want, s.match(way...), stays)
	}
}

// The limit is on real bytes: many endpoints with nothing in common.
func TestIndexBytes(t *testing.T) {
	const most = 2 << 20
	x := newIndex(t, prefix.IndexConfig{MaxBytes: most})
	before := heap()
	candidates := fleet(50)
	traffic := newTraffic(256, 3)
	grown := int64(0)
	for i := range 3000 {
		blocks := traffic.prompt()[64:]
		blocks = blocks[:1+(i*37)%len(blocks)]
		req := endpick.Request{Blocks: blocks, InputTokens: 16 * len(blocks)}
		routed(x, &req, &candidates[i%50], endpick.LeaseRef{Generation: uint32(i) + 1})
		one := candidates[i%50 : i%50+1]
		x.Match(&req, one)
		require.Equal(t, max(16*len(blocks)-1, 0), one[0].PrefixTokens, "the newest request is kept")
		if i%100 == 0 {
			require.LessOrEqual(t, x.Stats().Bytes, int64(most))
		}
	}
	grown = heap() - before
	stats := x.Stats()
	assert.Greater(t, stats.Bytes, int64(most)*6/7, "the room is used, but for what is set aside for prompts in prefill")
	assert.InEpsilon(t, float64(stats.Bytes), float64(grown), 0.1, "what is counted is what is taken")
	for _, e := range stats.Endpoints {
		assert.Positive(t, e.Held, "nobody is pushed out: %v", e.Ref)
	}
	runtime.KeepAlive(x)
}

// Whoever uses the memory pays for it.
func TestIndexBytesBusyPaysFirst(t *testing.T) {
	s := newShelf(t, 2, prefix.IndexConfig{MaxBytes: 1 << 20, BlocksPerEndpoint: 1 << 20})
	s.route(0, 1, 2, 3)
	traffic := newTraffic(1024, 3)
	for range 400 {
		s.route(1, traffic.prompt()...)
	}
	assert.Positive(t, s.Stats().Evicted)
	assert.Equal(t, []int{48, 0}, s.match(1, 2, 3))

	// A single prompt may need everything.
	long := make([]uint64, 125_000)
	for i := range long {
		long[i] = uint64(i) + 9
	}
	s.route(1, long...)
	assert.LessOrEqual(t, s.Stats().Bytes, int64(1<<20))
}

// If the fixed cost alone is too much, the index is empty, and works.
func TestIndexWithoutRoom(t *testing.T) {
	x := newIndex(t, prefix.IndexConfig{MaxBytes: 1 << 20})
	c := endpick.Candidate{Ref: endpick.EndpointRef{Slot: 50_000, Generation: 1}}
	req := endpick.Request{Blocks: []uint64{1, 2}, InputTokens: 33}
	routed(x, &req, &c, endpick.LeaseRef{Generation: 1})
	one := []endpick.Candidate{c}
	x.Match(&req, one)
	assert.Zero(t, one[0].PrefixTokens)
	assert.Zero(t, x.Stats().Pairs)
}

func TestIndexConfig(t *testing.T) {
	for field, config := range map[string]prefix.IndexConfig{
		"BlocksPerEndpoint": {BlocksPerEndpoint: -1},
		"MaxBytes":          {MaxBytes: 1<<20 - 1},
	} {
		_, err := prefix.NewIndex(config)
		var ce *endpick.ConfigError
		require.ErrorAs(t, err, &ce)
		assert.Equal(t, "prefix.IndexConfig."+field, ce.Field)
		assert.ErrorAs(t, err, new(*endpick.ConfigError))
	}
}

func TestIndexMemoryPerBlock(t *testing.T) {
	before := heap()
	x := fill(t, 100, 5000, 5000, 64)
	grown := float64(heap() - before)
	stats := x.Stats()
	assert.Equal(t, 1_000_000, stats.Pairs)
	assert.Equal(t, 505_000, stats.Blocks)
	assert.Less(t, grown/float64(stats.Pairs), 24.0)
	assert.InEpsilon(t, float64(stats.Bytes), grown, 0.1)
	runtime.KeepAlive(x)
}

func TestIndexAllocates(t *testing.T) {
	if rig.Race {
		t.Skip("the race detector empties pools")
	}
	x := newIndex(t, prefix.IndexConfig{BlocksPerEndpoint: 10_000}) // full after the first rounds
	candidates := fleet(20)
	traffic := newTraffic(512, 1)
	rounds(x, traffic, candidates, 1000)
	req := endpick.Request{InputTokens: 8192}
	e := endpick.Event{Request: &req}
	n := uint32(5000)
	assert.Zero(t, testing.AllocsPerRun(500, func() {
		n++
		req.Blocks = traffic.prompt()
		x.Match(&req, candidates)
		e.Lease = endpick.LeaseRef{Slot: n % 8, Generation: n}
		e.Candidate = &candidates[n%20]
		prefix.Listen(x).Routed(&e)
		prefix.Listen(x).FirstToken(&e)
		prefix.Listen(x).Done(&e, &endpick.Outcome{HasCachedTokens: true})
	}))
}
