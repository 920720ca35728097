package precise

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/internal/lab/rig"
	"github.com/endpick/endpick/prefix"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ModelScope is the scope of the tests' host.
func ModelScope(adapter, salt string) prefix.Scope {
	return prefix.Scope{Model: "m", Adapter: adapter, Salt: salt}
}

// talker is an engine that publishes what it stores and removes, in the way of its
// kind, and keeps no record: only its names for blocks are consistent.
type talker struct {
	r      *rand.Rand
	size   int
	groups []Event // template of each group's events
	chains []chain // prompts that it has published something about; each fills a block
	salt   uint64  // distinguishes its names after a restart
}

type chain struct {
	tokens        []uint32
	adapter, seal string
	opaqueFrom    int // tokens; 0: nowhere
}

func (c *chain) name(t *talker, blocks int) Hash {
	h := t.salt ^ uint64(len(c.adapter))<<1 ^ uint64(len(c.seal))<<9
	if c.opaqueFrom > 0 && blocks*t.size > c.opaqueFrom {
		h ^= 1 << 40
	}
	for _, token := range c.tokens[:blocks*t.size] {
		h = h*0x9e3779b97f4a7c15 + uint64(token) + 1
		h ^= h >> 29
	}
	return Hash(h)
}

// prompt returns a prompt of few different beginnings.
func (t *talker) prompt() []uint32 {
	tokens := make([]uint32, 1+t.r.IntN(140))
	kind := uint32(0)
	for i := range tokens {
		if i%24 == 0 {
			kind = kind*3 + uint32(t.r.IntN(3))
		}
		tokens[i] = kind*100 + uint32(i)
	}
	return tokens
}

func (t *talker) event() Event {
	e := t.groups[t.r.IntN(len(t.groups))]
	roll := t.r.IntN(100)
	if len(t.chains) == 0 {
		roll = 0
	}
	pick := func() *chain { return &t.chains[t.r.IntN(len(t.chains))] }
	names := func(c *chain) (names []Hash) {
		all := len(c.tokens) / t.size
		from := t.r.IntN(all)
		for i := from; i < min(all, from+1+t.r.IntN(4)); i++ {
			names = append(names, c.name(t, i+1))
		}
		return names
	}
	switch {
	case roll < 45: // a prompt, in one event or several
		c := chain{tokens: t.prompt()}
		if len(t.chains) > 0 && t.r.IntN(3) > 0 {
			c = *pick()
			c.tokens = append(slices.Clip(c.tokens[:t.r.IntN(len(c.tokens))]), t.prompt()...)
		}
		if t.r.IntN(20) == 0 {
			c.adapter = "a"
		}
		if t.r.IntN(20) == 0 {
			c.seal = "salty"
		}
		if t.r.IntN(20) == 0 {
			c.opaqueFrom = 1 + t.r.IntN(len(c.tokens))
		}
		all := len(c.tokens) / t.size
		if all == 0 {
			return Event{Kind: Stored}
		}
		from := 0
		if t.r.IntN(2) == 0 {
			from = t.r.IntN(all)
		}
		if e.Tier = GPU; t.r.IntN(8) == 0 {
			e.Tier = Tier(t.r.IntN(Tiers))
		}
		e.Tokens = c.tokens[from*t.size : all*t.size]
		e.Adapter, e.Salt = c.adapter, c.seal
		if e.BlockTokens = t.size; e.Spec == Full && t.r.IntN(4) == 0 {
			e.BlockTokens = []int{0, 1, 7}[t.r.IntN(3)] // to be ignored
		}
		if from > 0 {
			e.HasParent, e.Parent = true, c.name(t, from)
		}
		first := from
		if e.Spec != Full && t.r.IntN(2) == 0 {
			first = all - 1 - t.r.IntN(min(all-from, 2)) // only the last blocks have names
		}
		for i := first; i < all; i++ {
			e.Hashes = append(e.Hashes, c.name(t, i+1))
			e.Opaque = append(e.Opaque, c.opaqueFrom > 0 && (i+1)*t.size > c.opaqueFrom)
		}
		if len(t.chains) < 60 {
			t.chains = append(t.chains, c)
		} else {
			t.chains[t.r.IntN(len(t.chains))] = c
		}
	case roll < 52: // moved to another tier
		e.Hashes, e.Tier = names(pick()), Tier(t.r.IntN(Tiers))
	case roll < 99:
		e.Kind, e.Hashes = Removed, names(pick())
		if e.Tier = GPU; t.r.IntN(4) == 0 {
			e.Tier = Tier(t.r.IntN(Tiers))
		}
	default:
		e.Kind = Cleared
		if t.r.IntN(2) == 0 {
			e.Tier = CPU
		}
	}
	return e
}

// lossy drops, duplicates and reorders events.
func lossy(r *rand.Rand, events []Event) []Event {
	var out []Event
	for _, e := range events {
		switch r.IntN(12) {
		case 0:
		case 1:
			out = append(out, e, e)
		case 2:
			out = slices.Insert(out, r.IntN(len(out)+1), e)
		default:
			out = append(out, e)
		}
	}
	return out
}

// fleetOf adds endpoints to a router whose policy has the index.
func fleetOf(x *Index, n int) (*endpick.Router, []endpick.EndpointRef) {
	config := endpick.Config{Policy: endpick.Policy{Matcher: x}, Seed: 1}
	for i := range n {
		config.Endpoints = append(config.Endpoints, endpick.Endpoint{ID: fmt.Sprint("e", i)})
	}
	router := rig.Must(endpick.New(config))
	var refs []endpick.EndpointRef
	for _, c := range router.AppendCandidates(nil) {
		refs = append(refs, c.Ref)
	}
	return router, refs
}

// lookup returns how many blocks of a prompt an endpoint saves.
func (x *Index) lookup(blocks []uint64, ref endpick.EndpointRef) float64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.most(x.endpoints.Find(ref), x.store.walk(nil, blocks))
}

// Whatever engines publish, and whatever happens to it on the way, the index equals its twin.
func TestIndexIsItsTwin(t *testing.T) {
	events := 100_000
	if rig.Race {
		events = 10_000
	}
	kinds := []struct {
		size   int
		groups []Event
	}{
		{16, []Event{{}}},
		{32, []Event{{Group: 3}}},
		{16, []Event{{}, {Group: 1, Spec: Window, Window: 40, BlockTokens: 16}}},
		{24, []Event{{}}},
		{4, []Event{{}}},
		{16, []Event{{}, {Group: 1}, {Group: 2, Spec: State, BlockTokens: 16}}},
		{16, []Event{{Spec: Window, Window: 33, BlockTokens: 16}}},
		{8, []Event{{}, {Group: 1, Spec: Window, Window: 20, BlockTokens: 8}}}, // one and a half of our blocks
		{1, []Event{{}}},
	}
	r := rand.New(rand.NewPCG(5, uint64(events)))
	x := rig.Must(New(Config{}))
	router, refs := fleetOf(x, len(kinds))
	two := newTwin(x.config.LoadCost, len(kinds))
	var feeds []*Feed
	var talkers []*talker
	for i, k := range kinds {
		feeds = append(feeds, rig.Must(x.Feed(refs[i], FeedConfig{Scope: ModelScope})))
		talkers = append(talkers, &talker{r: r, size: k.size, groups: k.groups, salt: r.Uint64()})
	}
	matched := 0
	check := func() {
		tokens := talkers[r.IntN(len(talkers))].prompt()
		if c := talkers[r.IntN(len(talkers))].chains; len(c) > 0 && r.IntN(8) > 0 {
			tokens = c[r.IntN(len(c))].tokens
			if r.IntN(2) == 0 {
				tokens = append(slices.Clip(tokens), talkers[0].prompt()...)
			}
		}
		scope := ModelScope("", "")
		if r.IntN(20) == 0 {
			scope = ModelScope("a", "")
		}
		blocks := prefix.AppendTokens(nil, scope.Seed(), tokens)
		for i, f := range two.feeds {
			want := two.saved(f, blocks)
			require.InDelta(t, want, x.lookup(blocks, refs[i]), 1e-9, "feed %d, %d blocks", i, len(blocks))
			require.Equal(t, f.knows, x.Knows(refs[i]))
			if want > 0 {
				matched++
			}
		}
		candidates := router.AppendCandidates(nil)
		r.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
		req := endpick.Request{InputTokens: len(tokens) + 1, Blocks: blocks, Exact: true}.At(time.Unix(1000, 0), 1, 1)
		x.Match(&req, candidates)
		for _, c := range candidates {
			if x.Knows(c.Ref) == Whole {
				require.Equal(t, int(x.lookup(blocks, c.Ref)*prefix.BlockTokens), c.PrefixTokens, "in any order")
			}
		}
	}
	for said := 0; said < events; {
		i := r.IntN(len(kinds))
		var batch []Event
		for range 1 + r.IntN(20) {
			batch = append(batch, talkers[i].event())
		}
		batch = lossy(r, batch)
		said += len(batch)
		want := 0
		for j := range batch {
			want += two.feeds[i].apply(&batch[j])
		}
		require.Equal(t, want, feeds[i].Apply(batch), "feed %d", i)
		if r.IntN(200) == 0 {
			k := Knowledge(r.IntN(3))
			feeds[i].Reset(k)
			two.feeds[i].reset(k)
			talkers[i].salt, talkers[i].chains = r.Uint64(), nil
		}
		check()
	}
	t.Logf("%d of the matches were not empty; %+v", matched, x.Stats())
	require.Greater(t, matched, events/10)

	for i := range feeds {
		if i%2 == 0 {
			feeds[i].Close()
		} else {
			router.Remove(fmt.Sprint("e", i))
		}
	}
	require.Empty(t, x.store.nodes, "nothing is left behind")
	require.Zero(t, x.store.bytes)
}

// However many feeds and requests come and go, tables are only as long as necessary.
func TestTablesDoNotGrow(t *testing.T) {
	x := rig.Must(New(Config{}))
	router, refs := fleetOf(x, 1)
	for i := range 1000 {
		feed := rig.Must(x.Feed(refs[0], FeedConfig{Scope: ModelScope}))
		tokens := make([]uint32, 24)
		tokens[0] = uint32(i)
		feed.Apply([]Event{{Hashes: []Hash{1, 2, 3}, Tokens: tokens}}) // blocks of eight tokens
		lease := rig.Must(router.Route(endpick.Request{InputTokens: 100, Blocks: []uint64{uint64(i), uint64(i) + 1<<32}, Exact: true}))
		lease.FirstToken()
		lease.Done(endpick.Outcome{})
	}
	assert.Len(t, x.feeds, 1)
	assert.LessOrEqual(t, len(x.feeds[0].tails), 8)
}

// A block that many have held takes no more room than others when they have removed it.
func TestHoldersThatAreGoneTakeNoRoom(t *testing.T) {
	x := rig.Must(New(Config{}))
	_, refs := fleetOf(x, 1)
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
}
