package precise_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/endpick/endpick/prefix/precise"
	"github.com/endpick/endpick/scorer/scorertest"
	"github.com/stretchr/testify/require"
)

// fleet is a router with servers, and the index of its policy.
type fleet struct {
	t      testing.TB
	index  *precise.Index
	router *endpick.Router
	now    time.Time
}

// newFleet has servers of these names, or a, b and c.
func newFleet(t testing.TB, config precise.Config, servers ...string) *fleet {
	f := &fleet{t: t, now: time.Unix(1e9, 0)}
	f.index = rig.Must(precise.New(config))
	f.router = rig.Must(endpick.New(endpick.Config{
		Policy: endpick.Policy{Matcher: f.index}, Clock: func() time.Time { return f.now }, Seed: 1,
	}))
	if servers == nil {
		servers = []string{"a", "b", "c"}
	}
	for _, id := range servers {
		require.NoError(t, f.router.Add(endpick.Endpoint{ID: id}))
	}
	return f
}

func (f *fleet) ref(id string) endpick.EndpointRef {
	ref, ok := f.router.Ref(id)
	require.True(f.t, ok)
	return ref
}

func (f *fleet) feed(id string, rank int) *precise.Feed {
	feed := rig.Must(f.index.Feed(f.ref(id), precise.FeedConfig{Rank: rank, Scope: scope}))
	feed.Reset(precise.Whole)
	return feed
}

// fed is a fleet of whose server a everything is known: that it holds nothing.
func fed(t testing.TB) (*fleet, *precise.Feed) {
	f := newFleet(t, precise.Config{})
	return f, f.feed("a", 0)
}

var scope = precise.ModelScope

// ids are n consecutive token ids.
func ids(first, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(first + i)
	}
	return tokens
}

func request(tokens []uint32) endpick.Request {
	return endpick.Request{InputTokens: len(tokens), Blocks: prefix.AppendTokens(nil, scope("", "").Seed(), tokens), Exact: true}
}

// matched returns the matches of a request's candidates, without routing it.
func (f *fleet) matched(req endpick.Request) map[string]int {
	candidates := f.router.AppendCandidates(nil)
	req = req.At(f.now, 1, 1)
	f.index.Match(&req, candidates)
	got := map[string]int{}
	for _, c := range candidates {
		got[c.Endpoint.ID] = c.PrefixTokens
	}
	return got
}

func stored(hashes []precise.Hash, tokens []uint32) precise.Event {
	return precise.Event{Hashes: hashes, Tokens: tokens}
}

func after(parent precise.Hash, e precise.Event) precise.Event {
	e.Parent, e.HasParent = parent, true
	return e
}

func removed(hashes ...precise.Hash) precise.Event {
	return precise.Event{Kind: precise.Removed, Hashes: hashes}
}

type hashes = []precise.Hash

// consecutive are n names of blocks.
func consecutive(first, n int) hashes {
	names := make(hashes, n)
	for i := range names {
		names[i] = precise.Hash(first + i)
	}
	return names
}

func TestTiers(t *testing.T) {
	f := newFleet(t, precise.Config{LoadCost: [precise.Tiers]float64{precise.CPU: 0.25, precise.Disk: 1}})
	a := f.feed("a", 0)
	cpu := precise.Event{Tier: precise.CPU, Hashes: hashes{1, 2}} // without tokens
	require.Zero(t, a.Apply([]precise.Event{stored(hashes{1, 2, 3}, ids(0, 48)), cpu}))
	req := request(ids(0, 64))
	require.Equal(t, 48, f.matched(req)["a"])

	a.Apply([]precise.Event{removed(2, 3)})
	require.Equal(t, 28, f.matched(req)["a"], "16 + 3/4 of 16")

	a.Apply([]precise.Event{removed(1), {Tier: precise.Disk, Hashes: hashes{2}}})
	require.Equal(t, 24, f.matched(req)["a"])
	a.Apply([]precise.Event{{Kind: precise.Removed, Tier: precise.CPU, Hashes: hashes{2}}})
	require.Equal(t, 12, f.matched(req)["a"], "what is on disk is not worth loading here")
	a.Apply([]precise.Event{{Kind: precise.Cleared}})
	require.Equal(t, 12, f.matched(req)["a"], "the cleared tier is another")
	a.Apply([]precise.Event{{Kind: precise.Cleared, Tier: precise.CPU}})
	require.Zero(t, f.matched(req)["a"])
	require.Zero(t, a.Apply([]precise.Event{{Tier: precise.CPU, Hashes: hashes{77}}}))
	require.Equal(t, uint64(1), f.index.Stats().Feeds[0].Missed, "neither tokens nor a known name")

	// Stores outside of the engine have longer blocks; those in GPU memory are found as before.
	chunk := stored(hashes{900}, ids(0, 64))
	chunk.Tier = precise.CPU
	require.Zero(t, a.Apply([]precise.Event{stored(hashes{1, 2, 3}, ids(0, 48)), chunk}))
	require.Equal(t, 48, f.matched(request(ids(0, 50)))["a"])
	require.Equal(t, 60, f.matched(request(ids(0, 80)))["a"])
}

// A model with full attention and a window of 40 tokens: three blocks of 16 hold the
// 39 tokens before any place.
func TestWindows(t *testing.T) {
	f, a := fed(t)
	whole := stored(consecutive(1, 8), ids(0, 128))
	window := whole
	window.Group, window.Spec, window.Window, window.BlockTokens = 1, precise.Window, 40, 32 // which is another group's
	require.Zero(t, a.Apply([]precise.Event{whole, window}))
	req := request(ids(0, 200))
	require.Equal(t, 128, f.matched(req)["a"])
	drop := func(h ...precise.Hash) {
		e := removed(h...)
		e.Group = 1
		require.Zero(t, a.Apply([]precise.Event{e}))
	}
	drop(1, 2, 3, 4)
	require.Equal(t, 128, f.matched(req)["a"], "blocks 6 to 8 are the window")
	require.Zero(t, f.matched(request(slices.Concat(ids(0, 96), ids(500, 90))))["a"], "5 and 6 are too few for a prompt that ends with them")
	drop(8)
	require.Equal(t, 112, f.matched(req)["a"], "5 to 7 are the window")
	drop(7)
	require.Zero(t, f.matched(req)["a"])
	next := after(8, stored(hashes{9}, ids(128, 16)))
	next.Group = 1
	require.Zero(t, a.Apply([]precise.Event{next}), "what it follows is known in the other group")

	// The engine omits what is before the window: hashes are those of the last blocks.
	b := f.feed("b", 0)
	window.Hashes, window.BlockTokens = hashes{6, 7, 8}, 16
	require.Zero(t, b.Apply([]precise.Event{whole, window}))
	require.Equal(t, 128, f.matched(req)["b"])
	window.Hashes, window.BlockTokens = hashes{4, 8}, 48 // not of these tokens
	require.Zero(t, f.feed("b", 0).Apply([]precise.Event{whole, window}))
	require.Equal(t, 128, f.matched(req)["b"])

	// The blocks of the other layers are twice as long: a prompt that ends within one continues at its start.
	window.Hashes = consecutive(1, 8)
	require.Zero(t, f.feed("c", 0).Apply([]precise.Event{stored(consecutive(1, 4), ids(0, 128)), window}))
	require.Equal(t, 96, f.matched(request(slices.Concat(ids(0, 112), ids(500, 20))))["c"])
}

// Blocks that the engine keeps apart are kept apart, and so is content other than tokens.
func TestIsolation(t *testing.T) {
	f, a := fed(t)
	salted := stored(hashes{1, 2}, ids(0, 32))
	salted.Salt = "s"
	adapted := stored(hashes{11, 12}, ids(0, 32))
	adapted.Adapter = "lora"
	seen := stored(hashes{21, 22, 23}, ids(0, 48))
	seen.Opaque = []bool{false, true, false}
	require.Zero(t, a.Apply([]precise.Event{salted, adapted, seen, after(2, stored(hashes{3}, ids(32, 16))), after(23, stored(hashes{24}, ids(48, 16)))}))
	at := "a"
	of := func(s prefix.Scope) int {
		return f.matched(endpick.Request{InputTokens: 64, Blocks: prefix.AppendTokens(nil, s.Seed(), ids(0, 64)), Exact: true})[at]
	}
	require.Equal(t, 48, of(scope("", "s")))
	require.Equal(t, 32, of(scope("lora", "")))
	require.Equal(t, 16, of(scope("", "")), "the second block is a picture's, and so is all that follows")
	require.Zero(t, of(scope("lora", "s")))
	require.Zero(t, of(prefix.Scope{Model: "m", Tenant: "t"}), "what tenants share in the engine they don't share here")
	require.Zero(t, of(prefix.Scope{Model: "other"}))

	// Unless told otherwise, the scope consists of adapter and salt.
	salted.Adapter, at = "l", "b"
	require.Zero(t, rig.Must(f.index.Feed(f.ref(at), precise.FeedConfig{})).Apply([]precise.Event{salted}))
	require.Equal(t, 32, of(prefix.Scope{Adapter: "l", Salt: "s"}))
	require.Zero(t, of(prefix.Scope{Adapter: "l"})+of(prefix.Scope{Salt: "s"})+of(prefix.Scope{}))
	require.Equal(t, precise.Partial, f.stats(at).Knows, "nobody has said what was there before")
}

// Records of layers with a window mean something else than those of layers that need
// everything. If a group turns out to be of the other kind, what it holds is no longer
// known, so it may hold anything.
func TestGroupsThatBecomeOthers(t *testing.T) {
	f := newFleet(t, precise.Config{})
	req := request(ids(0, 64))
	feed := f.feed("a", 0)
	knows := func() precise.Knowledge { return f.index.Knows(f.ref("a")) }
	feed.Apply([]precise.Event{stored(hashes{1, 2, 3, 4}, ids(0, 64))})
	require.Equal(t, precise.Whole, knows())
	again := stored(hashes{5}, ids(500, 16))
	feed.Apply([]precise.Event{again})
	require.Equal(t, precise.Whole, knows())
	again.Hashes, again.Spec, again.Window = hashes{6}, precise.Window, 32
	feed.Apply([]precise.Event{again})
	require.Equal(t, precise.Partial, knows())
	require.Zero(t, f.matched(req)["a"])
}

// Endpoints without events, and prompts of which only the text is known, are matched
// as without this index.
func TestTheRestIsApproximate(t *testing.T) {
	f := newFleet(t, precise.Config{})
	req, next := request(ids(0, 64)), request(ids(0, 100))
	lease := rig.Must(f.router.Route(req))
	lease.FirstToken()
	lease.Done(endpick.Outcome{})
	at := lease.Endpoint().ID
	f.now = f.now.Add(time.Minute)
	require.Equal(t, 64, f.matched(next)[at], "nobody says anything")
	require.NotEmpty(t, f.index.Stats().Approximate.Endpoints)

	feed := f.feed(at, 0)
	require.Zero(t, f.matched(next)[at], "the engine says that it has nothing")
	text := next
	text.Exact = false
	require.Equal(t, 64, f.matched(text)[at])
	feed.Reset(precise.Partial)
	require.Equal(t, 64, f.matched(next)[at])
	feed.Apply([]precise.Event{stored(hashes{1, 2, 3, 4, 5}, ids(0, 80))})
	require.Equal(t, 80, f.matched(next)[at], "the better of the two")
	feed.Reset(precise.Nothing)
	require.Equal(t, 64, f.matched(next)[at])
	feed.Reset(precise.Whole)
	require.Zero(t, f.matched(next)[at])
	feed.Close()
	require.Equal(t, 64, f.matched(next)[at])
	require.Zero(t, feed.Apply([]precise.Event{stored(hashes{1}, ids(0, 16))}), "a closed feed is deaf")
	require.Equal(t, 64, f.matched(next)[at])
	require.Empty(t, f.index.Stats().Feeds)
}

func TestRanks(t *testing.T) {
	f := newFleet(t, precise.Config{})
	zero, one := f.feed("a", 0), f.feed("a", 1)
	zero.Apply([]precise.Event{stored(hashes{1}, ids(0, 16))})
	one.Apply([]precise.Event{stored(hashes{1, 2}, ids(0, 32))})
	require.Equal(t, 32, f.matched(request(ids(0, 40)))["a"])
	one.Reset(precise.Whole)
	require.Equal(t, 16, f.matched(request(ids(0, 40)))["a"], "the other rank has not restarted")
	again := f.feed("a", 0)
	zero.Apply([]precise.Event{stored(hashes{1, 2}, ids(0, 32))})
	zero.Close()
	require.Zero(t, f.matched(request(ids(0, 40)))["a"], "succeeded")
	require.Len(t, f.index.Stats().Feeds, 2)
	again.Apply([]precise.Event{stored(hashes{1}, ids(0, 16))})
	require.Equal(t, 16, f.matched(request(ids(0, 40)))["a"])
	one.Apply([]precise.Event{stored(hashes{1, 2}, ids(0, 32))})
	require.Equal(t, 32, f.matched(request(ids(0, 40)))["a"], "whichever has come last")
	again.Apply([]precise.Event{after(1, stored(hashes{2, 3}, ids(16, 32)))})
	require.Equal(t, 48, f.matched(request(ids(0, 60)))["a"])
	one.Reset(9)
	require.Equal(t, precise.Whole, f.index.Stats().Feeds[1].Knows, "nobody knows more")
	for _, rank := range []*precise.Feed{one, again} {
		rank.Reset(precise.Partial)
		require.Equal(t, precise.Partial, f.index.Knows(f.ref("a")), "the least of what is known of each")
		rank.Reset(precise.Whole)
	}
}

// Knowledge about an endpoint ends with it.
func TestEndpointsComeBackWithNothing(t *testing.T) {
	f := newFleet(t, precise.Config{})
	a, old := f.feed("a", 0), f.ref("a")
	a.Apply([]precise.Event{stored(hashes{1}, ids(0, 16))})
	require.NoError(t, f.router.Remove("a"))
	require.ErrorIs(t, rig.Err(f.index.Feed(old, precise.FeedConfig{})), endpick.ErrUnknownEndpoint)
	require.NoError(t, f.router.Add(endpick.Endpoint{ID: "a"}))
	a.Apply([]precise.Event{stored(hashes{1}, ids(0, 16))})
	require.Zero(t, f.matched(request(ids(0, 40)))["a"])
	require.Empty(t, f.index.Stats().Feeds)
}

func TestConfig(t *testing.T) {
	for field, c := range map[string]precise.Config{
		"MaxBytes": {MaxBytes: 1},
		"LoadCost": {LoadCost: [precise.Tiers]float64{precise.Disk: -1}},
	} {
		require.Equal(t, "precise.Config."+field, rig.Field(precise.New(c)))
	}
	f := newFleet(t, precise.Config{})
	require.ErrorContains(t, rig.Err(f.index.Feed(f.ref("a"), precise.FeedConfig{Rank: -1})), "precise.FeedConfig.Rank")
}

// long stores prompts of n blocks that share nothing.
func long(prompt, n int) precise.Event {
	return stored(consecutive(prompt<<20+1, n), ids(prompt<<20, 16*n))
}

// A block takes no more memory than Config.MaxBytes says, and Stats.Bytes is no less
// than the real memory.
func TestMemoryPerBlock(t *testing.T) {
	rig.SkipUnderRace(t, "the race detector takes memory of its own")
	const blocks = 200_000
	f := newFleet(t, precise.Config{})
	a, b := f.feed("a", 0), f.feed("b", 0)
	before := rig.Heap()
	for i := range blocks / 100 {
		a.Apply([]precise.Event{long(i, 100)})
	}
	one := rig.Heap() - before
	for i := range blocks / 100 {
		b.Apply([]precise.Event{long(i, 100)})
	}
	two := rig.Heap() - before - one
	s := f.index.Stats()
	t.Logf("%d bytes for a block of one engine, %d more for a second; counted as %d for both", one/blocks, two/blocks, s.Bytes/blocks)
	require.Equal(t, blocks, s.Blocks)
	require.Less(t, one/blocks, int64(220))
	require.Less(t, two/blocks, int64(70))
	require.Less(t, one+two, s.Bytes+s.Bytes/8)

	// The first block of a prompt takes more.
	c := f.feed("c", 0)
	before = rig.Heap()
	for i := range blocks {
		c.Apply([]precise.Event{stored(hashes{precise.Hash(i)}, ids(-i-1, 16))})
	}
	first, counted := rig.Heap()-before, f.index.Stats().Bytes-s.Bytes
	t.Logf("%d bytes for a first block, counted as %d", first/blocks, counted/blocks)
	require.Less(t, first/blocks, int64(340))
	require.Less(t, first, counted)
	runtime.KeepAlive(f)
}

func TestMatchAllocatesNothing(t *testing.T) {
	rig.SkipUnderRace(t, "pools forget under the race detector")
	f := newFleet(t, precise.Config{})
	f.feed("a", 0).Apply([]precise.Event{long(1, 100)})
	f.feed("b", 0).Apply([]precise.Event{long(1, 50)})
	f.feed("c", 0)
	req := request(long(1, 100).Tokens)
	route := func() {
		lease := rig.Must(f.router.Route(req))
		lease.FirstToken()
		lease.Done(endpick.Outcome{})
	}
	for range 100 {
		route()
	}
	require.Zero(t, testing.AllocsPerRun(100, route))
}

func ExampleIndex() {
	index, err := precise.New(precise.Config{})
	if err != nil {
		panic(err)
	}
	router, err := endpick.New(endpick.Config{
		Policy:    endpick.Policy{Matcher: index},
		Endpoints: []endpick.Endpoint{{ID: "a"}, {ID: "b"}},
	})
	if err != nil {
		panic(err)
	}
	ref, _ := router.Ref("b")
	scope := func(adapter, salt string) prefix.Scope {
		return prefix.Scope{Model: "llama", Adapter: adapter, Salt: salt}
	}
	feed, err := index.Feed(ref, precise.FeedConfig{Scope: scope})
	if err != nil {
		panic(err)
	}

	// The engine has started, and computed a prompt of 40 tokens.
	tokens := make([]uint32, 40)
	feed.Reset(precise.Whole)
	feed.Apply([]precise.Event{{Kind: precise.Stored, Hashes: []precise.Hash{0xa1, 0xb2}, Tokens: tokens[:32]}})

	blocks := prefix.AppendTokens(nil, scope("", "").Seed(), tokens)
	lease, err := router.Route(endpick.Request{InputTokens: len(tokens), Blocks: blocks, Exact: true, Exclude: []string{"a"}})
	if err != nil {
		panic(err)
	}
	chosen, _ := lease.Candidate()
	fmt.Println(chosen.Endpoint.ID, "holds", chosen.PrefixTokens, "of", len(tokens))
	// Output: b holds 32 of 40
}

func TestStagesConform(t *testing.T) {
	newIndex := func() *precise.Index { return rig.Must(precise.New(precise.Config{})) }
	scorertest.RunMatcher(t, func(t *testing.T) endpick.Matcher { return newIndex() })
	t.Run("observer", func(t *testing.T) {
		scorertest.RunObserver(t, func(t *testing.T) any { return newIndex().Observer().([]any)[0] })
	})
}
