package prefix_test

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fleet is n endpoints as candidates.
func fleet(n int) []endpick.Candidate {
	candidates := make([]endpick.Candidate, n)
	for i := range candidates {
		candidates[i].Endpoint = &endpick.Endpoint{ID: fmt.Sprint("e", i)}
		candidates[i].Ref = endpick.EndpointRef{Slot: uint32(i), Generation: 1}
	}
	return candidates
}

func newIndex(tb require.TestingT, config prefix.IndexConfig) *prefix.Index {
	return rig.Must(prefix.NewIndex(config))
}

// shelf is an index with the candidates of a fleet.
type shelf struct {
	*prefix.Index
	prefix.Listener
	fleet []endpick.Candidate
	block float64 // tokens; 0: 16
	key   endpick.LeaseRef
	next  uint64   // block
	free  []uint32 // slots of leases
	slots uint32
}

func newShelf(t require.TestingT, endpoints int, config prefix.IndexConfig) *shelf {
	x := newIndex(t, config)
	return &shelf{Index: x, Listener: prefix.Listen(x), fleet: fleet(endpoints)}
}

func (s *shelf) request(tenant string, blocks []uint64) *endpick.Request {
	return &endpick.Request{Blocks: blocks, InputTokens: 16*len(blocks) + 1, BlockTokens: s.block, Tenant: tenant}
}

// route serves a request without a tenant.
func (s *shelf) route(slot int, blocks ...uint64) { s.serve(slot, "", blocks...) }

// match returns the tokens that each endpoint holds.
func (s *shelf) match(blocks ...uint64) []int {
	s.Match(s.request("", blocks), s.fleet)
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
	s.route(0, 5, 6)
	assert.Equal(t, []int{0}, s.match(1, 2, 3, 4), "5 and 6 are new, 1 and 2 were the oldest")
	assert.Equal(t, []int{64}, s.match(7, 8, 9, 10))
	assert.EqualValues(t, 4, s.Stats().Evicted)
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
			s := newShelf(t, 1, tc.config)
			s.fleet[0].Endpoint.KVTokens, s.block = tc.kv, tc.block
			blocks := s.fresh(70_000)
			s.route(0, blocks...)
			stats := s.Stats()
			assert.Equal(t, tc.want, stats.Pairs)
			assert.Equal(t, tc.want, stats.Endpoints[0].Bound)
			all := s.request("", blocks)
			want := min(int(float64(tc.want)*all.TokensPerBlock()), all.InputTokens-1)
			assert.Equal(t, []int{want}, s.match(blocks...), "the head of a prompt that does not fit")
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

// An engine of 1,600 tokens held 960 of a prompt, of which one request needs 320, and 160 others.
func TestIndexMatchIsAtMostTheMemory(t *testing.T) {
	s := newShelf(t, 1, prefix.IndexConfig{})
	at, asked := &s.fleet[0], s.fresh(60)
	s.route(0, asked...)
	s.begin(0, "", append(slices.Clone(asked[:20]), s.fresh(10)...)...)
	for _, tc := range []struct{ size, reported, usage, requests, output, want int }{
		{1600, 0, 100, 2, 0, 960},
		{0, 1, 100, 2, 0, 960},
		{1600, 1, 60, 2, 0, 960},     // 640 are free, beside 320
		{1600, 1, 65, 2, 0, 880},     // 560 are
		{1600, 1, 100, 2, 0, 320},    // what is in use is there
		{1600, 1, 100, 1, 0, 960},    // no other router's: the 480 that this one's need
		{1600, 1, 100, 1, 1000, 448}, // and the 62 blocks that it has generated
		{1600, 1, 65, 1, 1200, 880},  // at most what is reported
		{1000, 1, 10, 2, 0, 840},     // but no less than the 480 that these prompts need,
		{480, 1, 10, 2, 0, 320},
		{470, 1, 10, 2, 0, 743}, // if all of them fit
	} {
		at.Endpoint.KVTokens, at.KVUsage, at.Running = tc.size, float64(tc.usage)/100, float64(tc.requests)
		at.Reported = endpick.KVUsageSignal * endpick.Signals(tc.reported)
		at.InFlight = endpick.InFlight{Requests: 1, OutputTokens: tc.output}
		assert.Equal(t, []int{tc.want}, s.match(asked...), "%+v", tc)
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

// The limit is on real bytes: many endpoints with nothing in common.
func TestIndexBytes(t *testing.T) {
	const most = 2 << 20
	s := newShelf(t, 50, prefix.IndexConfig{MaxBytes: most})
	before := rig.Heap()
	for i := range 3000 {
		blocks := s.fresh(1 + (i*37)%192)
		s.route(i%50, blocks...)
		require.Equal(t, 16*len(blocks), s.match(blocks...)[i%50], "the newest request is kept")
		if i%100 == 0 {
			require.LessOrEqual(t, s.Stats().Bytes, int64(most))
		}
	}
	grown := rig.Heap() - before
	stats := s.Stats()
	assert.Greater(t, stats.Bytes, int64(most)*6/7, "the room is used, but for what is set aside for prompts in prefill")
	assert.InEpsilon(t, float64(stats.Bytes), float64(grown), 0.1, "what is counted is what is taken")
	for _, e := range stats.Endpoints {
		assert.Positive(t, e.Held, "nobody is pushed out: %v", e.Ref)
	}
	runtime.KeepAlive(s)
}

// If the fixed cost alone is too much, the index is empty, and works.
func TestIndexWithoutRoom(t *testing.T) {
	s := newShelf(t, 1, prefix.IndexConfig{MaxBytes: 1 << 20})
	s.fleet[0].Ref.Slot = 50_000
	s.route(0, 1, 2)
	assert.Equal(t, []int{0}, s.match(1, 2))
	assert.Zero(t, s.Stats().Pairs)
}

func TestIndexConfig(t *testing.T) {
	for field, config := range map[string]prefix.IndexConfig{
		"BlocksPerEndpoint": {BlocksPerEndpoint: -1},
		"MaxBytes":          {MaxBytes: 1<<20 - 1},
	} {
		assert.Equal(t, "prefix.IndexConfig."+field, rig.Field(prefix.NewIndex(config)))
	}
}

// Every endpoint holds the same 80 prompts, and 80 of its own.
func TestIndexMemoryPerBlock(t *testing.T) {
	before := rig.Heap()
	s := newShelf(t, 100, prefix.IndexConfig{})
	same := s.serveAll(0, "", 80, 64)
	for slot := range 100 {
		s.serveAll(slot, "", 80, 64)
		for _, p := range same {
			s.route(slot, p...)
		}
	}
	grown := float64(rig.Heap() - before)
	stats := s.Stats()
	assert.Equal(t, 100*160*64, stats.Pairs)
	assert.Equal(t, 101*80*64, stats.Blocks)
	assert.Less(t, grown/float64(stats.Pairs), 24.0)
	assert.InEpsilon(t, float64(stats.Bytes), grown, 0.1)
	runtime.KeepAlive(s)
}

// traffic makes prompts that share their first quarter, all in the same slice.
type traffic struct {
	blocks []uint64
	next   uint64
}

func (t *traffic) prompt() []uint64 {
	for i := len(t.blocks) / 4; i < len(t.blocks); i++ {
		t.next++
		t.blocks[i] = t.next * 0xbf58476d1ce4e5b9
	}
	return t.blocks
}

// An index that is full allocates nothing any more, for prompts or for what follows them.
func TestIndexAllocates(t *testing.T) {
	rig.SkipUnderRace(t, "the race detector empties pools")
	for name, after := range map[string]int{"prompts": 0, "responses": 50} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t, 20, prefix.IndexConfig{BlocksPerEndpoint: 10_000})
			traffic := traffic{blocks: make([]uint64, 512)}
			turn := func() {
				all := traffic.prompt()
				req := endpick.Request{Blocks: all[:len(all)-after], InputTokens: 8192}
				o := endpick.Outcome{HasCachedTokens: true}
				if after > 0 {
					o.Blocks = all
				}
				s.key.Generation++
				s.key.Slot = s.key.Generation % 8
				e := endpick.Event{Lease: s.key, Request: &req, Candidate: &s.fleet[s.key.Generation%20]}
				s.Match(&req, s.fleet)
				s.Routed(&e)
				s.FirstToken(&e)
				s.Done(&e, &o)
			}
			for range 1000 {
				turn()
			}
			assert.Zero(t, testing.AllocsPerRun(500, turn))
		})
	}
}
