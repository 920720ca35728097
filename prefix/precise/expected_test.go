package precise_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/prefix/precise"
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

func (f *fleet) expected() int { return f.index.Stats().Expected }

// What is expected of one rank does not end with another's report, and ends only once; a feed
// without knowledge has no expectations.
func TestExpectedOfRanks(t *testing.T) {
	for _, started := range []bool{false, true} {
		f := newFleet(t, precise.Config{})
		zero, one := f.feed("a", 0), f.feed("a", 1)
		lease := f.to("a", request(ids(0, 64)))
		if started {
			lease.FirstToken()
		}
		assert.Equal(t, 8, f.expected())
		zero.Close()
		assert.Equal(t, 4, f.expected())
		assert.Equal(t, 64, f.matched(request(ids(0, 100)))["a"])
		lease.Done(endpick.Outcome{Status: endpick.Failed})
		f.now = f.now.Add(time.Second)
		assert.Zero(t, f.matched(request(ids(0, 100)))["a"])
		assert.Zero(t, f.expected())
		one.Reset(precise.Nothing)
		lease = f.to("a", request(ids(0, 64)))
		assert.Zero(t, f.expected())
		lease.Done(endpick.Outcome{Status: endpick.Failed})
	}
}

// Only the head of a prompt is expected whose blocks follow each other in events too.
func TestExpectedUpToABlockOfAnotherPlace(t *testing.T) {
	f := newFleet(t, precise.Config{})
	req := request(ids(0, 64))
	require.Zero(t, f.feed("a", 0).Apply([]precise.Event{{Hashes: hashes{1}, Keys: req.Blocks[1:2]}}))
	before := f.index.Stats().Bytes
	lease := f.to("a", req)
	assert.Equal(t, 1, f.expected())
	lease.Done(endpick.Outcome{Status: endpick.Failed})
	assert.Zero(t, f.expected())
	assert.Equal(t, before, f.index.Stats().Bytes)
}

// The approximate index is notified of everything.
func TestTheApproximateIndexHears(t *testing.T) {
	f := newFleet(t, precise.Config{})
	f.feed("a", 0)
	approximate := func() (held, pending int) {
		for _, e := range f.index.Stats().Approximate.Endpoints {
			held, pending = held+e.Held, pending+e.Pending
		}
		return held, pending
	}
	is := func(held, pending int) {
		h, p := approximate()
		assert.Equal(t, []int{held, pending}, []int{h, p})
	}
	lease := f.to("a", request(ids(0, 64)))
	is(0, 4)
	lease.FirstToken()
	is(4, 0)
	lease.Done(endpick.Outcome{Status: endpick.Failed})
	is(4, 0)
	f.to("a", request(ids(1000, 64))).Done(endpick.Outcome{Status: endpick.Failed})
	is(4, 0)
	f.to("a", request(ids(1000, 64))).Done(endpick.Outcome{})
	is(8, 0)
	require.NoError(t, f.router.Remove("a"))
	is(0, 0)
}

// Blocks whose grace is over end with the next event.
func TestGraceEnds(t *testing.T) {
	for i, hear := range []func(*fleet, endpick.Lease){
		func(f *fleet, _ endpick.Lease) { f.to("b", request(ids(9, 8))).Done(endpick.Outcome{}) },
		func(_ *fleet, l endpick.Lease) { l.FirstToken() },
		func(_ *fleet, l endpick.Lease) { l.Done(endpick.Outcome{Status: endpick.Failed}) },
		func(f *fleet, _ endpick.Lease) { f.matched(request(ids(9, 8))) },
	} {
		f := newFleet(t, precise.Config{})
		f.feed("a", 0)
		under := f.to("c", request(ids(700, 8)))
		f.to("a", request(ids(0, 64))).Done(endpick.Outcome{})
		f.now = f.now.Add(time.Second)
		assert.Equal(t, 4, f.expected())
		hear(f, under)
		assert.Zero(t, f.expected(), "%d", i)
	}
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
}

// The feed with the most blocks is forgotten, in whatever order they came, and whichever was
// forgotten before.
func TestTheLargestIsForgotten(t *testing.T) {
	for _, order := range [][]string{{"a", "b", "c"}, {"c", "b", "a"}, {"b", "a", "c"}} {
		f := newFleet(t, precise.Config{MaxBytes: 1 << 20})
		feeds := map[string]*precise.Feed{}
		for _, id := range order {
			feeds[id] = f.feed(id, 0)
		}
		feeds["c"].Close()
		require.Zero(t, feeds["a"].Apply([]precise.Event{long(1, 100)}))
		for i := 2; f.index.Stats().Overflows == 0; i++ {
			require.Less(t, i, 1000)
			require.Zero(t, feeds["b"].Apply([]precise.Event{long(i, 50)}))
		}
		assert.Equal(t, []int{100, 0}, []int{f.stats("a").Blocks, f.stats("b").Blocks})
		assert.Equal(t, []precise.Knowledge{precise.Whole, precise.Partial}, []precise.Knowledge{f.stats("a").Knows, f.stats("b").Knows})
		assert.EqualValues(t, 1, f.index.Stats().Overflows)
	}
}
