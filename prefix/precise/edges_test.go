package precise_test

import (
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix/precise"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func (f *fleet) stats(id string) precise.FeedStats {
	for _, s := range f.index.Stats().Feeds {
		if s.Ref == f.ref(id) {
			return s
		}
	}
	return precise.FeedStats{}
}

// A sender that names blocks as requests do need not send tokens; but blocks that follow
// by their tokens can't be placed then.
func TestBlocksByTheNamesOfRequests(t *testing.T) {
	f, a := fed(t)
	req := request(ids(0, 100)) // six blocks
	keys := func(from, to int, e precise.Event) precise.Event {
		e.Keys = req.Blocks[from:to]
		return e
	}
	require.Zero(t, a.Apply([]precise.Event{keys(0, 2, precise.Event{Hashes: hashes{1, 2}})}))
	assert.Equal(t, 32, f.matched(req)["a"])
	require.Zero(t, a.Apply([]precise.Event{keys(2, 4, after(2, precise.Event{Hashes: hashes{3, 4}}))}))
	assert.Equal(t, 64, f.matched(req)["a"])
	assert.Equal(t, 1, a.Apply([]precise.Event{keys(4, 5, after(9, precise.Event{Hashes: hashes{5}}))}), "nobody knows 9")
	assert.Equal(t, 1, a.Apply([]precise.Event{after(4, stored(hashes{5}, ids(64, 16)))}), "nobody knows the tokens before")
	assert.Equal(t, 64, f.matched(req)["a"])
	require.Zero(t, a.Apply([]precise.Event{keys(4, 6, after(4, precise.Event{Hashes: hashes{5}}))}), "two names for one")
	assert.EqualValues(t, 1, f.stats("a").Ignored)
	require.Zero(t, a.Apply([]precise.Event{removed(2)}))
	assert.Equal(t, 16, f.matched(req)["a"])
	require.Zero(t, a.Apply([]precise.Event{removed(1, 3, 4)}))
	a.Reset(precise.Whole)
	// Tokens add what names alone did not say.
	require.Zero(t, a.Apply([]precise.Event{keys(0, 1, precise.Event{Hashes: hashes{1}}), stored(hashes{1}, ids(0, 16)), after(1, stored(hashes{2}, ids(16, 16)))}))
	assert.Equal(t, 32, f.matched(req)["a"])
	// A block that ends within one of ours has no name that could be continued.
	b := f.feed("b", 0)
	require.Zero(t, b.Apply([]precise.Event{stored(hashes{1}, ids(0, 8))}))
	assert.Equal(t, 1, b.Apply([]precise.Event{keys(0, 1, after(1, precise.Event{Hashes: hashes{2}}))}))
}

// Invalid events are counted and change nothing.
func TestEventsThatMakeNoSense(t *testing.T) {
	f, a := fed(t)
	good := stored(hashes{1, 2}, ids(0, 32))
	require.Zero(t, a.Apply([]precise.Event{good}))
	group := func(g int, e precise.Event) precise.Event { e.Group = g; return e }
	size := func(n int, e precise.Event) precise.Event { e.BlockTokens = n; return e }
	for i, e := range []precise.Event{
		{Tier: precise.Tiers, Hashes: hashes{1}}, {Kind: precise.Cleared + 1}, {Kind: precise.Cleared, Tier: precise.Tiers},
		size(-1, stored(hashes{7}, ids(0, 16))), stored(hashes{7, 8}, ids(0, 33)), stored(hashes{7, 8, 9}, ids(0, 2)),
		stored(hashes{7}, ids(0, 1<<16+1)), group(99, removed(1)), stored(make(hashes, 32), ids(0, 1<<20+32)),
		{Hashes: make(hashes, 1<<16+1), Keys: make([]uint64, 1<<16+1)},
	} {
		ignored := f.stats("a").Ignored
		require.Zero(t, a.Apply([]precise.Event{e}))
		if i == 7 { // an unknown group holds nothing
			assert.EqualValues(t, 1, f.stats("a").Missed)
		} else {
			assert.Equal(t, ignored+1, f.stats("a").Ignored, "%d", i)
		}
		assert.Equal(t, 32, f.matched(request(ids(0, 64)))["a"], "%d", i)
		assert.Equal(t, 2, f.stats("a").Blocks, "%d", i)
	}
	require.Zero(t, a.Apply([]precise.Event{stored(hashes{7}, ids(1<<20, 1<<16))}), "the longest")
	assert.Equal(t, 3, f.stats("a").Blocks)
	require.Zero(t, a.Apply([]precise.Event{stored(nil, nil), stored(nil, ids(0, 16))}), "no blocks")
	assert.Equal(t, 3, f.stats("a").Blocks)

	// There is room for eight groups, whatever their numbers.
	b := f.feed("b", 0)
	for g := range 8 {
		require.Zero(t, b.Apply([]precise.Event{group(100*g, good)}))
	}
	assert.Equal(t, []int{8, 16}, []int{f.stats("b").Groups, f.stats("b").Blocks})
	require.Zero(t, b.Apply([]precise.Event{group(7, good), group(7, removed(1))}))
	assert.EqualValues(t, 2, f.stats("b").Ignored)
	assert.Equal(t, []int{8, 16}, []int{f.stats("b").Groups, f.stats("b").Blocks})
	require.Zero(t, b.Apply([]precise.Event{group(700, removed(2))}))
	assert.Equal(t, 16, f.matched(request(ids(0, 64)))["b"], "all groups need it")
	b.Reset(precise.Whole)
	assert.Zero(t, f.stats("b").Groups)

	var names []string
	for k := range precise.Whole + 3 {
		names = append(names, k.String())
	}
	assert.Equal(t, []string{"nothing", "partial", "whole", "unknown", "unknown"}, names)
}

// However many copies of a block there are: 255 count.
func TestManyCopies(t *testing.T) {
	f, a := fed(t)
	held := func() int { return f.matched(request(ids(0, 40)))["a"] }
	for range 300 {
		require.Zero(t, a.Apply([]precise.Event{stored(hashes{1}, ids(0, 16))}))
	}
	for range 254 {
		require.Zero(t, a.Apply([]precise.Event{removed(1)}))
	}
	assert.Equal(t, 16, held())
	require.Zero(t, a.Apply([]precise.Event{removed(1)}))
	assert.Zero(t, held())
}

func TestFeedStats(t *testing.T) {
	f := newFleet(t, precise.Config{})
	f.feed("b", 0)
	a := f.feed("a", 3)
	cpu := precise.Event{Tier: precise.CPU, Hashes: hashes{1, 9}}
	a.Apply([]precise.Event{
		stored(hashes{1, 2, 3}, ids(0, 48)), stored(hashes{1}, ids(0, 16)), cpu, removed(2, 2, 8),
		{Kind: precise.Removed, Tier: precise.Disk, Hashes: hashes{1}}, after(9, stored(hashes{4}, ids(48, 16))), {Kind: 9},
	})
	s := f.stats("a")
	assert.Equal(t, precise.FeedStats{
		Ref: f.ref("a"), Rank: 3, Knows: precise.Partial, Blocks: 2, Groups: 1, Events: 7, Stored: 3,
		Unknown: 1, Missed: 1 + 2 + 1, Ignored: 1, Resets: 1,
	}, s)
	assert.Len(t, f.index.Stats().Feeds, 2)
	require.Zero(t, a.Apply([]precise.Event{{Kind: precise.Cleared}}))
	assert.Equal(t, precise.Whole, f.stats("a").Knows, "what is in GPU memory from now on is known")
	a.Apply([]precise.Event{after(9, stored(hashes{4}, ids(48, 16))), {Kind: precise.Cleared, Tier: precise.CPU}})
	assert.Equal(t, precise.Partial, f.stats("a").Knows)
}

// In the end nothing is left, whatever the engines' blocks were like and however they
// were removed.
func TestNothingIsLeft(t *testing.T) {
	special := func(e precise.Event) precise.Event { e.Adapter, e.Salt = "l", "s"; return e }
	window := func(e precise.Event) precise.Event {
		e.Group, e.Spec, e.Window = 1, precise.Window, 40
		return e
	}
	cpu := func(e precise.Event) precise.Event { e.Tier = precise.CPU; return e }
	opaque := func(e precise.Event) precise.Event { e.Opaque = []bool{false, true}; return e }
	events := []precise.Event{
		stored(hashes{1, 2, 3}, ids(0, 48)), special(stored(hashes{11, 12}, ids(0, 32))),
		stored(consecutive(100, 20), ids(700, 20)), after(119, stored(consecutive(120, 20), ids(720, 20))), // of a token
		stored(hashes{200, 201}, ids(0, 96)), after(201, special(stored(hashes{202}, ids(96, 48)))),
		window(stored(hashes{1, 2, 3}, ids(0, 48))), opaque(stored(hashes{31, 32, 33}, ids(0, 48))), after(33, stored(hashes{34}, ids(48, 16))),
		cpu(stored(hashes{1, 41}, ids(900, 32))), cpu(stored(hashes{2}, nil)), stored(hashes{1}, ids(300, 8)), stored(hashes{1}, ids(300, 8)),
		after(99, stored(hashes{5}, ids(48, 16))),
		// The first of two gets the name of the block that both follow.
		special(stored(hashes{60}, ids(800, 10))), after(60, stored(hashes{60, 61}, ids(810, 40))),
	}
	for name, end := range map[string]func(*fleet, *precise.Feed){
		"removed": func(_ *fleet, feed *precise.Feed) {
			all := consecutive(0, 300)
			for range 3 {
				feed.Apply([]precise.Event{removed(all...), {Kind: precise.Removed, Hashes: all, Group: 1}, {Kind: precise.Removed, Tier: precise.CPU, Hashes: all}})
			}
		},
		"cleared": func(_ *fleet, feed *precise.Feed) {
			feed.Apply([]precise.Event{{Kind: precise.Cleared, Tier: precise.CPU}, {Kind: precise.Cleared}})
		},
		"reset":    func(_ *fleet, feed *precise.Feed) { feed.Reset(precise.Partial) },
		"closed":   func(_ *fleet, feed *precise.Feed) { feed.Close() },
		"followed": func(f *fleet, _ *precise.Feed) { f.feed("a", 0) },
		"gone":     func(f *fleet, _ *precise.Feed) { require.NoError(f.t, f.router.Remove("a")) },
	} {
		f := newFleet(t, precise.Config{})
		a, b := f.feed("a", 0), f.feed("b", 0)
		for range 2 {
			a.Apply(events)
			b.Apply(events[:1])
			assert.Positive(t, f.index.Stats().Bytes)
			end(f, a)
			b.Reset(precise.Whole)
			s := f.index.Stats()
			assert.Equal(t, []int64{0, 0}, []int64{int64(s.Blocks), s.Bytes}, name)
			if name == "closed" || name == "followed" || name == "gone" {
				break
			}
		}
	}
}

// Loading counts if it costs less than computing.
func TestWorthLoading(t *testing.T) {
	tiers := func(t ...precise.Tier) []precise.Tier { return t }
	for i, tc := range []struct {
		cost  [precise.Tiers]float64
		tiers []precise.Tier
		want  float64
	}{
		{[precise.Tiers]float64{}, tiers(precise.CPU), 0.9}, {[precise.Tiers]float64{}, tiers(precise.Disk), 0.5}, {[precise.Tiers]float64{}, tiers(precise.External), 0.7},
		{[precise.Tiers]float64{}, tiers(precise.Disk, precise.External), 0.7}, {[precise.Tiers]float64{}, tiers(precise.External, precise.CPU, precise.Disk), 0.9},
		{[precise.Tiers]float64{precise.CPU: 1}, tiers(precise.CPU), 0}, {[precise.Tiers]float64{precise.CPU: 7}, tiers(precise.CPU), 0}, {[precise.Tiers]float64{precise.CPU: 7}, tiers(precise.CPU, precise.Disk), 0.5},
		{[precise.Tiers]float64{}, tiers(precise.CPU, precise.GPU), 1},
	} {
		f := newFleet(t, precise.Config{LoadCost: tc.cost})
		a := f.feed("a", 0)
		for _, tier := range tc.tiers {
			e := stored(hashes{1}, ids(0, 16))
			e.Tier = tier
			require.Zero(t, a.Apply([]precise.Event{e}))
		}
		assert.Equal(t, int(16*tc.want), f.matched(request(ids(0, 20)))["a"], "%d", i)
	}
}

// What engines and their clients can invent takes neither memory beyond the bound nor time beyond what
// they have stored.
func TestEventsOfAHostileEngine(t *testing.T) {
	f, a := fed(t)
	before := rig.Heap()
	for i := range 64 {
		e := stored(hashes{precise.Hash(i)}, ids(0, 16))
		e.Salt = strings.Repeat("x", 1<<20) + strconv.Itoa(i)
		require.Zero(t, a.Apply([]precise.Event{e}))
	}
	assert.Less(t, rig.Heap()-before, int64(8<<20), "long salts")
	assert.Equal(t, 64, f.stats("a").Blocks)

	const many = 1 << 16
	fill := func(id string, to *precise.Feed) {
		require.Zero(t, to.Apply([]precise.Event{stored(consecutive(0, many), ids(0, 16*many))}), "the most in one event")
		require.Equal(t, many, f.stats(id).Blocks)
	}
	fill("a", a)
	a.Reset(precise.Whole)
	before = rig.Heap()
	b := f.feed("b", 0)
	fill("b", b)
	b.Reset(precise.Whole)
	assert.Less(t, rig.Heap()-before, int64(1<<20), "the tables of what is forgotten")
	fill("a", a)
	for i := 0; f.stats("a").Blocks > 0; i++ {
		require.Less(t, i, 1000)
		require.Zero(t, a.Apply([]precise.Event{{Kind: precise.Cleared, Tier: precise.CPU}}))
	}
	assert.Equal(t, precise.Partial, f.stats("a").Knows)
}

// A large cache is forgotten in steps, between which requests are matched, as if nothing was known, and
// the endpoint may go.
func TestForgettingMuch(t *testing.T) {
	f, a := fed(t)
	names := consecutive(0, 1<<14)
	fill := func() { require.Zero(t, a.Apply([]precise.Event{stored(names, ids(0, 16*len(names)))})) }
	fill()
	left, steps := len(names), 0
	for more := true; more; steps++ {
		more = a.Forget()
		now := f.stats("a").Blocks
		require.LessOrEqual(t, left-now, 1024)
		require.Equal(t, more, now > 0)
		require.Equal(t, precise.Nothing, f.index.Knows(f.ref("a")))
		require.Zero(t, f.matched(request(ids(0, 100)))["a"])
		left = now
	}
	require.Greater(t, steps, 16)
	fill()
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Reset(precise.Whole)
	}()
	require.NoError(t, f.router.SetEndpoints(nil))
	<-done
	require.False(t, a.Forget())
	require.Zero(t, f.index.Stats().Bytes)
}

// Requests get in between the steps of one event about many blocks, too.
func TestMuchInOneEvent(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // who never stops for another sees nothing of it
	f, a := fed(t)
	names := consecutive(0, 1<<15)
	for name, e := range map[string]precise.Event{
		"cleared": {Kind: precise.Cleared}, "removed": {Kind: precise.Removed, Hashes: names},
	} {
		within := false
		for i := 0; !within; i++ {
			require.Less(t, i, 100, name)
			require.Zero(t, a.Apply([]precise.Event{stored(names, ids(0, 16*len(names)))}))
			done := make(chan struct{})
			go func() {
				defer close(done)
				a.Apply([]precise.Event{e})
			}()
			for left := len(names); left > 0; left = f.stats("a").Blocks {
				within = within || left < len(names)
			}
			<-done
			require.Equal(t, precise.Whole, f.stats("a").Knows)
		}
	}
}

// An engine whose few blocks are long, or skip many, is forgotten before those that have more.
func TestFewLongBlocks(t *testing.T) {
	for name, e := range map[string]precise.Event{
		"long":    stored(hashes{0}, ids(0, 1<<16)),
		"skipped": {Hashes: hashes{0}, Tokens: ids(0, 1<<16), BlockTokens: 16, Spec: precise.State},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, precise.Config{MaxBytes: 1 << 20})
			a, b := f.feed("a", 0), f.feed("b", 0)
			for i := range 64 {
				require.Zero(t, b.Apply([]precise.Event{stored(hashes{precise.Hash(i)}, ids(-16*i-16, 16))}))
			}
			for i := range 4 {
				e.Hashes[0] = precise.Hash(i)
				e.Tokens[0] = uint32(1<<20 + i)
				require.Zero(t, a.Apply([]precise.Event{e}))
			}
			assert.Positive(t, f.index.Stats().Overflows)
			assert.Equal(t, 64, f.stats("b").Blocks)
			a.Reset(precise.Whole)
			before := f.index.Stats().Overflows
			for i := 64; f.index.Stats().Overflows == before; i++ {
				require.Zero(t, b.Apply([]precise.Event{stored(hashes{precise.Hash(i)}, ids(-16*i-16, 16))}))
				require.LessOrEqual(t, f.index.Stats().Bytes, int64(1<<20), "what has been forgotten is the largest no more")
			}
		})
	}
}
