package prefix_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
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

func TestResponses(t *testing.T) {
	prompt := []uint64{1, 2, 3}
	for _, tc := range []struct {
		name   string
		status endpick.Status
		bound  int
		prompt []uint64
		blocks []uint64
		want   int // matched tokens of 1, 2, 3, 4, 5
		strays uint64
	}{
		{name: "none", prompt: prompt, want: 48},
		{name: "no whole block", prompt: prompt, blocks: prompt, want: 48},
		{name: "two blocks", prompt: prompt, blocks: []uint64{1, 2, 3, 4, 5}, want: 80},
		{name: "a short prompt", blocks: []uint64{1, 2, 3, 4, 5}, want: 80},
		{name: "another end of the prompt", prompt: prompt, blocks: []uint64{1, 2, 9, 4, 5}, want: 48, strays: 1},
		{name: "less than the prompt", prompt: prompt, blocks: []uint64{1, 2}, want: 48, strays: 1},
		{name: "the response alone", prompt: prompt, blocks: []uint64{4, 5, 6, 7}, want: 48, strays: 1},
		{name: "what the prompt was not", prompt: []uint64{7, 8}, blocks: []uint64{1, 2, 3, 4, 5}, strays: 1},
		{name: "failed", status: endpick.Failed, prompt: prompt, blocks: []uint64{1, 2, 3, 4, 5}},
		{name: "canceled", status: endpick.Canceled, prompt: prompt, blocks: []uint64{1, 2, 3, 4, 5}},
		{name: "lost", status: endpick.Lost, prompt: prompt, blocks: []uint64{1, 2, 3, 4, 5}},
		{name: "longer than the cache", bound: 4, prompt: prompt, blocks: []uint64{1, 2, 3, 4, 5}, want: 64},
		{name: "as the prompt was", bound: 2, prompt: prompt, blocks: []uint64{1, 2, 3, 4, 5}, want: 32},
		{name: "another prompt than that beyond the cache", bound: 2, prompt: prompt, blocks: []uint64{1, 2, 9, 4}, want: 32, strays: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newShelf(t, 2, prefix.IndexConfig{BlocksPerEndpoint: tc.bound})
			s.answer(s.begin(0, "", tc.prompt...), tc.status, tc.blocks...)
			assert.Equal(t, []int{tc.want, 0}, s.match(1, 2, 3, 4, 5))
			assert.Equal(t, tc.strays, s.Stats().Strays)
			assert.Zero(t, s.Stats().Endpoints[0].Pending)
		})
	}
}

// A response evicts no more than a prompt of its tenant would, and takes no
// more memory.
func TestResponsesKeepToTheirShare(t *testing.T) {
	t.Run("blocks", func(t *testing.T) {
		s := newShelf(t, 1, prefix.IndexConfig{BlocksPerEndpoint: 100})
		mine := s.fresh(40)
		s.serve(0, "mine", mine...)
		for range 20 {
			all := s.fresh(50)
			s.answer(s.begin(0, "chatty", all[:10]...), endpick.Completed, all...)
		}
		assert.Equal(t, []int{640}, s.match(mine...))
		all := s.fresh(5000)
		s.answer(s.begin(0, "chatty", all[:10]...), endpick.Completed, all...)
		assert.Equal(t, []int{640}, s.match(mine...))
		assert.Equal(t, 100, s.Stats().Pairs)
	})
	t.Run("bytes", func(t *testing.T) {
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
	})
}
