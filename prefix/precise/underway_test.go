package precise_test

import (
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix/precise"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// to routes a request to one server.
func (f *fleet) to(id string, req endpick.Request) endpick.Lease {
	for _, other := range []string{"a", "b", "c"} {
		if other != id {
			req.Exclude = append(req.Exclude, other)
		}
	}
	lease, err := f.router.Route(req)
	require.NoError(f.t, err)
	return lease
}

// Requests under way count for the engine that has them, by themselves or beyond what it has reported,
// until they end: then only its events do.
func TestRequestsUnderWay(t *testing.T) {
	f, a := fed(t)
	f.feed("b", 0)
	next := request(ids(0, 100))
	is := func(want int) {
		t.Helper()
		assert.Equal(t, map[string]int{"a": want, "b": 0, "c": 0}, f.matched(next))
	}
	first, second := f.to("a", request(ids(0, 64))), f.to("a", request(ids(0, 48)))
	is(64)
	f.now = f.now.Add(time.Hour) // it waits in a queue
	is(64)
	second.FirstToken()
	first.Done(endpick.Outcome{Status: endpick.Failed})
	is(48)
	require.Zero(t, a.Apply([]precise.Event{stored(hashes{1, 2}, ids(0, 32))}))
	is(48)
	second.Done(endpick.Outcome{})
	is(32)
	third := f.to("a", next)
	is(96)
	a.Reset(precise.Whole)
	is(96)
	third.Done(endpick.Outcome{})
	is(0)

	text := next
	text.Exact = false
	assert.Equal(t, 96, f.matched(text)["a"], "events say nothing of what is guessed")
}

// A prompt of unknown length is as long as its blocks.
func TestPromptsOfUnknownLength(t *testing.T) {
	f := newFleet(t, precise.Config{})
	require.Zero(t, f.feed("a", 0).Apply([]precise.Event{stored(hashes{1, 2, 3}, ids(0, 48))}))
	for input, want := range map[int]int{0: 47, -5: 47, 1: 0, 2: 1, 48: 47, 49: 48, 1000: 48} {
		req := request(ids(0, 48))
		req.InputTokens = input
		assert.Equal(t, want, f.matched(req)["a"], "%d", input)
	}
	req := request(ids(0, 64))
	req.InputTokens = 0
	assert.Equal(t, 48, f.matched(req)["a"])
	req.BlockTokens = 32
	assert.Zero(t, f.matched(req)["a"], "blocks of another length are not those of events")
}

// However much engines publish, the limit holds: the feed with the most blocks is forgotten, in
// whatever order they came, and whichever was forgotten before.
func TestTheLargestIsForgotten(t *testing.T) {
	for _, order := range [][]string{{"a", "b", "c"}, {"c", "b", "a"}, {"b", "a", "c"}} {
		f := newFleet(t, precise.Config{MaxBytes: 1 << 20})
		feeds := map[string]*precise.Feed{}
		for _, id := range order {
			feeds[id] = f.feed(id, 0)
		}
		feeds["c"].Close()
		require.Zero(t, feeds["a"].Apply([]precise.Event{long(1, 1000)}))
		for i := 2; f.index.Stats().Overflows == 0; i++ {
			require.Less(t, i, 1000)
			require.Zero(t, feeds["b"].Apply([]precise.Event{long(i, 50)}))
			require.LessOrEqual(t, f.index.Stats().Bytes, int64(1<<20))
		}
		assert.Equal(t, []int{1000, 0}, []int{f.stats("a").Blocks, f.stats("b").Blocks})
		assert.Equal(t, []precise.Knowledge{precise.Whole, precise.Partial}, []precise.Knowledge{f.stats("a").Knows, f.stats("b").Knows})
		assert.EqualValues(t, 1, f.index.Stats().Overflows)
		assert.Equal(t, 16000, f.matched(request(ids(1<<20, 16001)))["a"])
		for i := range 400 { // until it has been forgotten some more times
			require.Zero(t, feeds["b"].Apply([]precise.Event{long(i, 50)}))
			require.LessOrEqual(t, f.index.Stats().Bytes, int64(1<<20))
		}
	}
}
