package precise

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// However many feeds and requests come and go, tables are only as long as necessary.
func TestTablesDoNotGrow(t *testing.T) {
	now := time.Unix(1e9, 0)
	x, err := New(Config{})
	require.NoError(t, err)
	router, err := endpick.New(endpick.Config{
		Policy: endpick.Policy{Matcher: x}, Endpoints: []endpick.Endpoint{{ID: "a"}}, Clock: func() time.Time { return now }, Seed: 1,
	})
	require.NoError(t, err)
	ref, _ := router.Ref("a")
	for i := range 1000 {
		feed, err := x.Feed(ref, FeedConfig{Scope: modelScope})
		require.NoError(t, err)
		tokens := make([]uint32, 24)
		tokens[0] = uint32(i)
		feed.Apply([]Event{{Hashes: []Hash{1, 2, 3}, Tokens: tokens}}) // blocks of eight tokens
		lease, err := router.Route(endpick.Request{InputTokens: 100, Blocks: []uint64{uint64(i), uint64(i) + 1<<32}, Exact: true})
		require.NoError(t, err)
		lease.FirstToken()
		lease.Done(endpick.Outcome{})
		now = now.Add(300 * time.Millisecond)
	}
	assert.Len(t, x.feeds, 1)
	assert.LessOrEqual(t, len(x.store.chunks), 1)
	assert.LessOrEqual(t, len(x.tails.all), 8)
	assert.LessOrEqual(t, len(x.store.scopes.all), 4)
	assert.LessOrEqual(t, len(x.store.sets.all), 64)
	assert.LessOrEqual(t, len(x.routed.grace), 16)
	assert.LessOrEqual(t, cap(x.routed.grace), 64)
	assert.LessOrEqual(t, len(x.routed.spare), 64)
	assert.Zero(t, x.routed.leases.Find(endpick.LeaseRef{}))
}

// When the stamps of matches wrap around, old marks don't count.
func TestStampsComeRound(t *testing.T) {
	s := &scratch{}
	s.begin(4)
	require.GreaterOrEqual(t, len(s.marks), 4)
	for _, stamp := range []uint32{1, 2, 1 << 31, ^uint32(0)} {
		s.stamp = stamp
		for i := range s.marks {
			s.marks[i] = mark{stamp: uint32(i + 1), saved: 1}
		}
		s.begin(4)
		for i := range s.marks {
			if stamp == ^uint32(0) || uint32(i+1) != s.stamp { // of the others nothing is asked
				assert.NotEqual(t, s.stamp, s.marks[i].stamp, "%d after %d", i, stamp)
			}
		}
		require.NotZero(t, s.stamp)
	}
	s.stamp = 77
	s.begin(100)
	require.GreaterOrEqual(t, len(s.marks), 100)
	for i := range s.marks {
		assert.NotEqual(t, s.stamp, s.marks[i].stamp)
	}
}
