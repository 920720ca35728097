package precise

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
)

// However many feeds and requests come and go, tables are only as long as necessary.
func TestTablesDoNotGrow(t *testing.T) {
	now := time.Unix(1e9, 0)
	x := rig.Must(New(Config{}))
	router := rig.Must(endpick.New(endpick.Config{
		Policy: endpick.Policy{Matcher: x}, Endpoints: []endpick.Endpoint{{ID: "a"}}, Clock: func() time.Time { return now }, Seed: 1,
	}))
	ref, _ := router.Ref("a")
	for i := range 1000 {
		feed := rig.Must(x.Feed(ref, FeedConfig{Scope: modelScope}))
		tokens := make([]uint32, 24)
		tokens[0] = uint32(i)
		feed.Apply([]Event{{Hashes: []Hash{1, 2, 3}, Tokens: tokens}}) // blocks of eight tokens
		lease := rig.Must(router.Route(endpick.Request{InputTokens: 100, Blocks: []uint64{uint64(i), uint64(i) + 1<<32}, Exact: true}))
		lease.FirstToken()
		lease.Done(endpick.Outcome{})
		now = now.Add(300 * time.Millisecond)
	}
	assert.Len(t, x.feeds, 1)
	assert.LessOrEqual(t, len(x.store.free), 64)
	assert.LessOrEqual(t, len(x.feeds[0].tails), 8)
	assert.LessOrEqual(t, len(x.store.scopes), 4)
	assert.LessOrEqual(t, len(x.grace), 16)
	assert.LessOrEqual(t, cap(x.grace), 64)
	assert.Zero(t, x.leases.Find(endpick.LeaseRef{}))
}

// A block that many have held takes no more room than others when they have removed it.
func TestHoldersThatAreGoneTakeNoRoom(t *testing.T) {
	x := rig.Must(New(Config{}))
	_, refs := fleetOf(t, x, 1, nil)
	e := Event{Hashes: []Hash{1}, Tokens: make([]uint32, 16)}
	var feeds []*Feed
	for rank := range 100 {
		feed := rig.Must(x.Feed(refs[0], FeedConfig{Rank: rank}))
		feed.Apply([]Event{e})
		feeds = append(feeds, feed)
	}
	before := x.Stats().Bytes
	for _, feed := range feeds[1:] {
		feed.Apply([]Event{{Kind: Removed, Hashes: e.Hashes}})
	}
	require.Less(t, x.Stats().Bytes, before-99*(entryWeight+memberWeight)+8*memberWeight)
	feeds[0].Close()
	for _, n := range x.store.free {
		require.LessOrEqual(t, cap(n.members), 8)
	}
}
