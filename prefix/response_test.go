package prefix_test

import (
	"testing"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// answer ends a request with the whole conversation.
func (s *shelf) answer(e *endpick.Event, status endpick.Status, blocks ...uint64) {
	s.Done(e, &endpick.Outcome{Status: status, Blocks: blocks})
	s.free = append(s.free, e.Lease.Slot)
}

// The next turn matches to the end of the last answer, through a router too,
// and what the caller does to the blocks afterwards changes nothing.
func TestResponsesAreMatched(t *testing.T) {
	r := rig.Must(endpick.New(endpick.Config{
		Endpoints: []endpick.Endpoint{{ID: "a"}, {ID: "b"}},
		Policy:    endpick.Policy{Matcher: newIndex(t, prefix.IndexConfig{})},
	}))
	conversation := []uint64{1, 2, 3, 4, 5, 6}
	l := rig.Must(r.Route(endpick.Request{Blocks: conversation[:2]}))
	l.Tokens(3)
	require.True(t, l.Done(endpick.Outcome{Blocks: conversation[:5]}))
	first := l.Endpoint().ID
	conversation[3] = 99
	require.False(t, l.Done(endpick.Outcome{Blocks: conversation}), "it has ended already")
	next := rig.Must(r.Route(endpick.Request{
		Blocks: []uint64{1, 2, 3, 4, 5, 6, 7}, InputTokens: 7 * 16, Exclude: []string{map[string]string{"a": "b", "b": "a"}[first]},
	}))
	c, ok := next.Candidate()
	require.True(t, ok)
	assert.Equal(t, 5*16, c.PrefixTokens)
}

// A response evicts no more than a prompt of its tenant would, and takes no
// more memory.
func TestResponsesKeepToTheirShare(t *testing.T) {
	const most = 1 << 20
	s := newShelf(t, 4, prefix.IndexConfig{MaxBytes: most, BlocksPerEndpoint: 1 << 30})
	mine := s.fresh(1000)
	s.serve(0, "mine", mine...)
	peak := int64(0)
	for i := range 40 {
		all := s.fresh(1_000_000)
		s.answer(s.begin(1+i%3, "chatty", all[:10]...), endpick.Completed, all...)
		peak = max(peak, s.Stats().Bytes)
	}
	assert.LessOrEqual(t, peak, int64(most))
	assert.Equal(t, 16_000, s.match(mine...)[0])

	for _, share := range []float64{1, 1e-9} { // the second is no block at all
		config := prefix.IndexConfig{MaxBytes: most, BlocksPerEndpoint: 1 << 30, TenantShare: share}
		alone, answered := newShelf(t, 1, config), newShelf(t, 1, config)
		all := alone.fresh(20_000)
		alone.serve(0, "", all...)
		for range 3 {
			answered.answer(answered.begin(0, "", all[:10]...), endpick.Completed, all...)
			assert.Equal(t, alone.match(all...), answered.match(all...), share)
			answered.begin(0, "", all[:10]...) // and no end
			assert.Zero(t, answered.Stats().Endpoints[0].Pending, "it is there, or more than the share")
		}
	}
}
