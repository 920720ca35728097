package prefix_test

import (
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// begin routes a request and leaves it in prefill.
func (s *shelf) begin(slot int, tenant string, blocks ...uint64) *endpick.Event {
	s.key.Generation++
	key := endpick.LeaseRef{Slot: s.slots, Generation: s.key.Generation}
	if last := len(s.free) - 1; last >= 0 {
		key.Slot, s.free = s.free[last], s.free[:last]
	} else {
		s.slots++
	}
	e := &endpick.Event{Lease: key, Request: s.request(tenant, blocks), Candidate: &s.fleet[slot]}
	s.Routed(e)
	return e
}

// serve routes a request, which its engine computes.
func (s *shelf) serve(slot int, tenant string, blocks ...uint64) {
	s.end(s.begin(slot, tenant, blocks...), endpick.Completed)
}

func (s *shelf) end(e *endpick.Event, status endpick.Status) {
	s.Done(e, &endpick.Outcome{Status: status})
	s.free = append(s.free, e.Lease.Slot)
}

// fresh returns n new blocks.
func (s *shelf) fresh(n int) []uint64 {
	blocks := make([]uint64, n)
	for i := range blocks {
		s.next++
		blocks[i] = s.next * 0x9e3779b97f4a7c15
	}
	return blocks
}

// A prompt that is refused, canceled or lost evicts nothing, however long it
// is, least of all from other tenants.
func TestRefusedPromptsEvictNobody(t *testing.T) {
	for _, attacker := range []string{"", "attacker"} {
		t.Run("tenant="+attacker, func(t *testing.T) {
			s := newShelf(t, 2, prefix.IndexConfig{MaxBytes: 8 << 20})
			var prompts [][]uint64
			for range 60 {
				prompts = append(prompts, s.fresh(150))
				s.serve(0, "", prompts[len(prompts)-1]...)
			}
			var open []*endpick.Event
			for i := range 12 {
				e := s.begin(0, attacker, s.fresh(11_000)...) // 700 kB
				if i%2 == 0 {
					s.end(e, endpick.Failed)
				} else {
					open = append(open, e) // some remain open
				}
			}
			for _, p := range prompts {
				require.Equal(t, []int{2400, 0}, s.match(p...))
			}
			for _, e := range open {
				s.end(e, endpick.Canceled)
			}
			for _, p := range prompts {
				require.Equal(t, []int{2400, 0}, s.match(p...))
			}
			stats := s.Stats()
			assert.Equal(t, 9000, stats.Pairs)
			assert.Zero(t, stats.Evicted)
			assert.Equal(t, 60, stats.Runs)
		})
	}
}

// A request that claims more blocks than its length allows only has as many
// pending: they count as load, which is measured by length.
func TestPendingIsNoLongerThanThePrompt(t *testing.T) {
	for _, tc := range []struct {
		input   int
		block   float64
		pending int
	}{{16 * 50, 0, 50}, {16 * 7, 0, 7}, {16*7 + 1, 0, 8}, {1, 0, 1}, {100, 12.5, 8}, {101, 12.5, 9}, {1 << 30, 1e-300, 50}} {
		s := newShelf(t, 1, prefix.IndexConfig{})
		s.Routed(&endpick.Event{
			Request: &endpick.Request{Blocks: s.fresh(50), InputTokens: tc.input, BlockTokens: tc.block}, Candidate: &s.fleet[0],
			Lease: endpick.LeaseRef{Generation: 1},
		})
		assert.Equal(t, tc.pending, s.Stats().Endpoints[0].Pending, "%+v", tc)
	}
}

// Pending prompts take no more than their part, of an endpoint or of the
// memory. Of what does not fit, only the head is kept and matched.
func TestPendingIsBounded(t *testing.T) {
	t.Run("bytes", func(t *testing.T) {
		const most = 1 << 20
		s := newShelf(t, 10, prefix.IndexConfig{MaxBytes: most})
		mine := s.fresh(1000)
		s.serve(0, "other", mine...)
		for i := range 20_000 {
			s.begin(i%10, string(rune('a'+i/10%20)), s.fresh(1+i%3*20)...)
		}
		stats := s.Stats()
		assert.LessOrEqual(t, stats.Pairs, 1000+most/8/8)
		assert.Zero(t, stats.Evicted)
		assert.Equal(t, 16_000, s.match(mine...)[0])
	})
	t.Run("bytes of a tenant", func(t *testing.T) {
		s := newShelf(t, 10, prefix.IndexConfig{MaxBytes: 1 << 20})
		for i := range 1000 {
			s.begin(i%10, "a", s.fresh(1000)...)
		}
		// An eighth of the memory, 10 bytes per block; half of that.
		assert.InDelta(t, (1<<20)/8/10/2, s.Stats().Pairs, 500)
		other := s.fresh(5000)
		s.begin(0, "b", other...)
		assert.Equal(t, 80_000, s.match(other...)[0])
	})
}

// Clients that read slowly keep their requests open, while others evict what these have
// sent. What is kept because of them has a bound.
func TestOpenRequestsKeepLittle(t *testing.T) {
	const most = 1 << 20
	s := newShelf(t, 10, prefix.IndexConfig{MaxBytes: most})
	mine := s.fresh(1000)
	s.serve(0, "other", mine...)
	for i := range 20_000 {
		s.FirstToken(s.begin(i%10, string(rune('a'+i/10%20)), s.fresh(1+i%3*20)...)) // and no end
		if i%100 == 0 {
			require.LessOrEqual(t, s.Stats().Bytes, int64(most))
		}
	}
	all, kept := 0, 0
	for _, e := range s.Stats().Endpoints {
		assert.Zero(t, e.Pending)
		assert.Positive(t, e.Held)
		all, kept = all+e.Held+e.Kept, kept+e.Kept
	}
	assert.Equal(t, s.Stats().Pairs, all)
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
			require.LessOrEqual(t, s.Stats().Bytes, int64(most))
		}
	}
	for _, e := range s.Stats().Endpoints {
		assert.LessOrEqual(t, e.Kept, 100, "what its engine may hold")
		assert.Positive(t, e.Held)
	}
	assert.Equal(t, 800, s.match(mine...)[9])
}
