package prefix

import (
	"fmt"
	"hash/maphash"
	"testing"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Capacity 1,600, so that an epoch is 100 blocks.
func TestTrustReview(t *testing.T) {
	type byAge = map[int]int // how many votes there are for an age, each of another tenant
	for _, tc := range []struct {
		name        string
		unknown     bool // size of the engine's cache
		learned     int
		unmoved     int
		had, lacked byAge
		want        int
	}{
		{name: "no votes", want: 1600},
		{name: "an eighth at most", lacked: byAge{800: 3}, want: 1400},
		{name: "a half at most", unknown: true, lacked: byAge{400: 3}, want: 800},
		{name: "what the votes say", lacked: byAge{1500: 3}, want: 1500},
		{name: "what they say of an unknown size", unknown: true, lacked: byAge{900: 3}, want: 900},
		{name: "no quorum for an unknown size", unknown: true, lacked: byAge{900: 2}, want: 1600},
		{name: "no quorum", lacked: byAge{800: 2}, want: 1600},
		{name: "beyond the capacity anyway", lacked: byAge{1600: 9}, want: 1600},
		{name: "just within it", lacked: byAge{1599: 3}, want: 1599},
		// An LRU cache that has older blocks does not lack younger ones.
		{name: "older ones were there", lacked: byAge{400: 5}, had: byAge{800: 3}, want: 1600},
		{name: "but few", lacked: byAge{400: 5}, had: byAge{800: 2}, want: 1400},
		{name: "as old ones were there", lacked: byAge{400: 5}, had: byAge{400: 3}, want: 1600},
		{name: "younger ones were there", lacked: byAge{400: 3}, had: byAge{399: 20}, want: 1400},
		// 1,450 contradicts 3 votes, 400 all 9 of those that were there, 1,600 all 7.
		{name: "the fewest contradictions", lacked: byAge{1450: 4, 400: 3}, had: byAge{420: 9}, want: 1450},
		{name: "the floor", learned: 26, lacked: byAge{8: 3}, want: 25},
		{name: "the floor of an unknown size", unknown: true, learned: 40, lacked: byAge{4: 3}, want: 25},
		{name: "never below it", learned: 25, lacked: byAge{8: 3}, want: 25},

		{name: "rises after a rest", learned: 800, unmoved: 150, want: 850},
		{name: "not before", learned: 800, unmoved: 149, want: 800},
		{name: "not against votes", learned: 800, unmoved: 199, lacked: byAge{500: 2}, want: 800},
		{name: "with a single one", learned: 800, unmoved: 199, lacked: byAge{500: 1}, want: 850},
		{name: "to the limit", learned: 1590, unmoved: 200, want: 1600},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &cache{size: size{1600, !tc.unknown}}
			c.trust = trust{learned: tc.learned, unmoved: tc.unmoved}
			cast := func(kind voteKind, age, n int) {
				for range n {
					c.trust.votes[c.trust.next] = vote{kind: kind, age: age, tenant: uint64(c.trust.next)}
					c.trust.next++
				}
			}
			for age, n := range tc.had {
				cast(had, age, n)
			}
			for age, n := range tc.lacked {
				cast(lacked, age, n)
			}
			before := c.capacity()
			c.trust.review(c)
			assert.Equal(t, tc.want, c.capacity())
			if tc.want < before {
				assert.EqualValues(t, 1, c.trust.lowered)
				c.trust.review(c)
				assert.Equal(t, tc.want, c.capacity(), "no quorum is left")
			}
			if tc.want > before {
				c.trust.review(c)
				assert.Equal(t, tc.want, c.capacity(), "one step a rest")
			}
		})
	}
	// A capacity that has risen to the limit is not learned any more: the limit may rise.
	c := &cache{size: size{blocks: 160}, trust: trust{learned: 151, unmoved: 20}}
	c.trust.review(c)
	assert.Zero(t, c.trust.learned)

	// Old votes don't count.
	for _, epoch := range []uint32{1, 2} {
		c = &cache{size: size{blocks: 1600}, ages: ages{newest: epochs + 1}}
		for i := range 3 {
			c.trust.votes[i] = vote{kind: lacked, age: 900, epoch: epoch}
		}
		c.trust.review(c)
		assert.Equal(t, map[uint32]int{1: 1600, 2: 900}[epoch], c.capacity(), epoch)
	}
}

// When the capacity moves, every other vote is forgotten, and those that have nothing to
// say any more.
func TestTrustKeepsHalfOfTheVotes(t *testing.T) {
	c := &cache{size: size{1600, true}}
	votes := []vote{
		{kind: lacked, age: 100}, {kind: lacked, age: 101}, {kind: lacked, age: 102}, {kind: lacked, age: 1500}, {kind: lacked, age: 103}, {kind: had, age: 1500},
		{kind: had, age: 50}, {kind: had, age: 51}, {kind: had, age: 1399}, {kind: had, age: 1399}, {kind: had, age: 1400}, {kind: had, age: 1400},
	}
	for i := range votes {
		votes[i].tenant = uint64(i)
	}
	copy(c.trust.votes[:], votes)
	for i := range 6 {
		c.trust.votes[20+i] = vote{kind: lacked, age: 104, tenant: uint64(20 + i)}
	}
	c.trust.review(c)
	assert.Equal(t, 1400, c.capacity())
	var left []uint64
	for _, v := range c.trust.votes {
		if v.kind != noVote {
			left = append(left, v.tenant)
		}
	}
	assert.Equal(t, []uint64{1, 3, 7, 9, 21, 23, 25}, left)
}

// Who is alone against the capacity is not believed, if a quorum of others has voted.
func TestTrustAlone(t *testing.T) {
	for _, tc := range []struct {
		against, others string // tenants
		want            int
	}{
		{"aaa", "", 1400}, {"aaa", "bb", 1400}, {"aaa", "bbb", 1600}, {"aaa", "bcd", 1600}, {"aab", "ccc", 1400}, {"aba", "ccc", 1400}, {"aaa", "aaa", 1400},
	} {
		c := &cache{size: size{1600, true}}
		for i, tenant := range tc.against {
			c.trust.votes[i] = vote{kind: lacked, age: 800, tenant: uint64(tenant)}
		}
		for i, tenant := range tc.others {
			c.trust.votes[10+i] = vote{kind: had, age: 200, tenant: uint64(tenant)}
		}
		c.trust.review(c)
		assert.Equal(t, tc.want, c.capacity(), "%+v", tc)
	}
	// Nor does such a tenant keep the capacity from rising again.
	c := &cache{size: size{1600, true}, trust: trust{learned: 800, unmoved: 200}}
	for i := range 3 {
		c.trust.votes[i] = vote{kind: lacked, age: 400, tenant: 1}
		c.trust.votes[10+i] = vote{kind: had, age: 200, tenant: 2}
	}
	c.trust.review(c)
	assert.Equal(t, 850, c.capacity())
}

// fixture routes requests to one endpoint of 1,600 blocks.
type fixture struct {
	endpoint endpick.Endpoint
	inFlight endpick.InFlight
	t        testing.TB
	x        *Index
	key      endpick.LeaseRef
	tenant   string
}

func newFixture(t testing.TB, blocks int) *fixture {
	x, err := NewIndex(IndexConfig{BlocksPerEndpoint: blocks})
	require.NoError(t, err)
	return &fixture{t: t, x: x}
}

func (d *fixture) routed(blocks []uint64) *endpick.Event {
	d.key.Slot++
	d.key.Generation++
	e := &endpick.Event{
		Lease:     d.key,
		Request:   &endpick.Request{Blocks: blocks, InputTokens: 16 * len(blocks), Tenant: d.tenant},
		Candidate: &endpick.Candidate{Endpoint: &d.endpoint, Ref: endpick.EndpointRef{Generation: 1}, InFlight: d.inFlight},
	}
	observer{d.x}.Routed(e)
	return e
}

func (d *fixture) done(e *endpick.Event, cachedTokens int) {
	observer{d.x}.Done(e, &endpick.Outcome{HasCachedTokens: true, CachedTokens: cachedTokens})
}

func (d *fixture) cache() *cache { return d.x.cacheAt(endpick.EndpointRef{Generation: 1}) }

func (d *fixture) capacity() int { return d.cache().capacity() }

// votes says how many there are, by age.
type votes = map[int]int

// voted fails unless these are the votes so far.
func (d *fixture) voted(had, lacked votes) {
	d.t.Helper()
	assert.Equal(d.t, fmt.Sprint(had, lacked), fmt.Sprint(d.ages(voteHad), d.ages(voteLacked)), "there, and missing")
}

const voteHad, voteLacked = had, lacked

func (d *fixture) ages(kind voteKind) votes {
	ages := votes{}
	for _, v := range d.cache().trust.votes {
		if v.kind == kind {
			ages[v.age]++
		}
	}
	return ages
}

// prompt is n blocks that are unique to a number.
func prompt(number, n int) []uint64 {
	blocks := make([]uint64, n)
	for i := range blocks {
		blocks[i] = uint64(number)<<32 + uint64(i) + 1
	}
	return blocks
}

// fill routes so many prompts of 100 blocks, each of which is an epoch, from a number on.
func (d *fixture) fill(from, n int) {
	for i := range n {
		d.done(d.routed(prompt(from+i, 100)), 0)
	}
	d.voted(nil, nil) // nothing was expected
}

// newFilled is a fixture with ten of these prompts, whose engine counts in blocks.
func newFilled(t testing.TB) *fixture {
	d := newFixture(t, 1600)
	d.fill(0, 10)
	d.cache().trust.grain.tokens = 16
	return d
}

// A tenant's share is a share of what the engine is trusted to hold, not of the limit.
func TestSharesAreOfWhatIsTrusted(t *testing.T) {
	d := newFixture(t, 320)
	serve := func(tenant string, from, n int) {
		d.tenant = tenant
		for i := range n {
			d.done(d.routed(prompt(from+i, 10)), 0)
		}
	}
	held := func(tenant string) int { return d.x.findAccount(d.cache(), tenant).held }
	serve("first", 0, 30)
	d.cache().trust.learned = 160
	serve("second", 100, 25)
	assert.GreaterOrEqual(t, held("first"), 80)
	assert.Equal(t, d.capacity(), held("first")+held("second"))
}

// A tenant with much in prefill does not lose what it holds because of that.
func TestWhatIsPendingIsNobodysShare(t *testing.T) {
	d := newFixture(t, 1000)
	for i, tenant := range []string{"a", "b", "b"} {
		d.tenant = tenant
		d.done(d.routed(prompt(i, 50)), 0)
	}
	above := func(tenant string) bool { return d.x.aboveShare(d.x.findAccount(d.cache(), tenant).tenant) }
	assert.Equal(t, [2]bool{false, true}, [2]bool{above("a"), above("b")})
	d.tenant = "a"
	for i := range 5 {
		d.routed(prompt(10+i, 50))
	}
	assert.Equal(t, [2]bool{false, true}, [2]bool{above("a"), above("b")})
}

func TestTrustVotes(t *testing.T) {
	for _, tc := range []struct {
		name   string
		which  int // of ten prompts, the oldest first
		cached int // blocks
		had    votes
		lacked votes
	}{
		// Prompt 0 is 1,000 blocks old.
		{"all there", 0, 100, votes{1000: 1}, votes{}},
		{"nearly all there", 0, 80, votes{1000: 1}, votes{}}, // 8 blocks and an eighth of the match may be missing
		{"one more, but within a grain", 0, 79, votes{}, votes{}},
		{"22 blocks missing", 0, 78, votes{}, votes{978: 1}}, // the first of them 978 old
		{"half of it", 0, 50, votes{}, votes{950: 1}},
		{"nothing", 0, 0, votes{}, votes{900: 1}},
		// 200 blocks old, of which 100 are others'.
		{"young", 8, 100, votes{200: 1}, votes{}},
		{"young and missing", 8, 0, votes{}, votes{100: 1}},
		// No other prompt was used after it.
		{"just used", 9, 100, votes{}, votes{}},
		{"just used and missing", 9, 0, votes{}, votes{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newFilled(t)
			d.tenant = "voter"
			d.done(d.routed(prompt(tc.which, 100)), 16*tc.cached)
			d.voted(tc.had, tc.lacked)
			for _, v := range d.cache().trust.votes {
				if v.kind != noVote {
					assert.Equal(t, maphash.String(d.x.seed, "voter"), v.tenant)
					assert.Equal(t, uint32(10), v.epoch)
				}
			}
		})
	}
}

// The last 32 votes count.
func TestTrustForgetsVotes(t *testing.T) {
	d := newFixture(t, 16_000)
	d.fill(0, 60)
	for i := range 40 {
		d.tenant = fmt.Sprint(i)
		d.done(d.routed(prompt(i, 100)), 16*100)
	}
	tenants := map[uint64]bool{}
	for _, v := range d.cache().trust.votes {
		assert.Equal(t, had, v.kind)
		tenants[v.tenant] = true
	}
	assert.Len(t, tenants, 32)
	for i := range 40 {
		assert.Equal(t, i >= 8, tenants[maphash.String(d.x.seed, fmt.Sprint(i))], i)
	}
}

// What an older request uses stays longer than what is newer and not in use, so it adds to
// the age of that: 900 blocks were used since prompt 1 was, and 100 are in use.
func TestTrustCountsWhatIsInUse(t *testing.T) {
	d := newFilled(t)
	d.routed(prompt(0, 100))
	d.done(d.routed(prompt(1, 100)), 16*100)
	d.voted(votes{1000: 1}, nil)

	// What is there although it is older than the capacity does not contradict that.
	d = newFilled(t)
	d.cache().trust.learned = 500
	d.done(d.routed(prompt(0, 100)), 16*100)
	d.voted(votes{530: 1}, nil) // 500 has risen by a sixteenth
}

// What others need in prefill, or for responses, may have pushed out what is missing: room for
// 900 blocks that were used later, and for 200 more, was not enough.
func TestTrustCountsWhatWasNeededBesides(t *testing.T) {
	for _, tc := range []struct{ prefill, generated int }{{200, 0}, {0, 200}, {50, 150}} {
		d := newFilled(t)
		d.routed(prompt(20, tc.prefill))
		d.inFlight.OutputTokens = 16 * tc.generated
		d.done(d.routed(prompt(0, 100)), 0)
		d.voted(nil, votes{1100: 1})
	}
}

// An endpoint that comes to have less room than was learned of it holds no more than that.
func TestCapacityIsWithinTheBound(t *testing.T) {
	for _, tc := range []struct{ learned, bound, want int }{{0, 160, 160}, {100, 160, 100}, {100, 80, 80}} {
		c := &cache{size: size{blocks: tc.bound}, trust: trust{learned: tc.learned}}
		assert.Equal(t, tc.want, c.capacity(), "%+v", tc)
	}
}

// A tenant has three votes an epoch.
func TestTrustVotesOfATenant(t *testing.T) {
	d := newFixture(t, 16_000)
	d.fill(0, 40)
	count := func() (n int) {
		for _, votes := range d.ages(voteHad) {
			n += votes
		}
		return n
	}
	for i := range 5 {
		d.done(d.routed(prompt(i, 100)), 16*100)
	}
	assert.Equal(t, 3, count())
	d.tenant = "other"
	d.done(d.routed(prompt(5, 100)), 16*100)
	assert.Equal(t, 4, count())
	d.tenant = ""
	d.done(d.routed(prompt(6, 100)), 16*100)
	assert.Equal(t, 4, count())
	for i := range 10 { // another epoch
		d.done(d.routed(prompt(100+i, 100)), 0)
	}
	d.done(d.routed(prompt(7, 100)), 16*100)
	assert.Equal(t, 5, count())
}

// Where the length of the prompt was a guess, what the engine reports is scaled by how far it
// was off, and so is the grain; not if nothing was guessed, or nothing is known.
func TestTrustScalesGuessedTokens(t *testing.T) {
	for _, tc := range []struct {
		name                          string
		guessed, input, cached, grain int // tokens
		had, lacked                   votes
	}{
		{"90 of 100 blocks, not 45", 1600, 800, 720, 16, votes{1000: 1}, nil},
		{"a grain of 50 blocks, half of the prompt", 1600, 800, 400, 400, nil, nil},
		{"not guessed", 0, 800, 720, 16, nil, votes{945: 1}}, // 45 blocks were there, of 100
		{"not reported", 1600, 0, 720, 16, nil, votes{945: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newFilled(t)
			d.cache().trust.grain.tokens = tc.grain
			e := d.routed(prompt(0, 100))
			e.Request.InputTokens = tc.guessed
			observer{d.x}.Done(e, &endpick.Outcome{HasCachedTokens: true, CachedTokens: tc.cached, InputTokens: tc.input})
			d.voted(tc.had, tc.lacked)
		})
	}
}

// The grain is the greatest common divisor of recent reports: of the last 16, and of those
// since. Too large a one is none.
func TestGrain(t *testing.T) {
	var g grain
	for _, tc := range []struct{ times, cached, want int }{
		{1, 0, 0}, {1, 96, 96}, {1, 64, 32}, {1, 0, 32}, {13, 32, 32}, {1, 48, 16},
		{16, 544, 16}, {15, 1056 * 2, 544}, {1, 1056, 544}, {1, 1, 1056}, {15, 1, 1056}, {16, 5000, 1}, {1, 16, 0},
	} {
		for range tc.times {
			require.Equal(t, tc.want, g.after(tc.cached), "%+v", tc)
		}
	}
}

func TestTrustIgnores(t *testing.T) {
	for name, report := range map[string]func(d *fixture){
		"null": func(d *fixture) { observer{d.x}.Done(d.routed(prompt(0, 100)), &endpick.Outcome{}) },
		"a head that was still in prefill": func(d *fixture) {
			d.routed(prompt(20, 100))
			second := d.routed(prompt(20, 100))
			d.fill(30, 10)
			d.done(second, 0)
		},
		"a tail that was still in prefill, behind a head that is old": func(d *fixture) {
			long := append(prompt(0, 100), prompt(100, 100)...)
			d.routed(long)
			d.done(d.routed(long), 100*16)
		},
		"a request that failed": func(d *fixture) {
			observer{d.x}.Done(d.routed(prompt(0, 100)), &endpick.Outcome{Status: endpick.Failed, HasCachedTokens: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newFilled(t)
			report(d)
			d.voted(nil, nil)
		})
	}
	t.Run("an endpoint that has gone", func(t *testing.T) {
		d := newFilled(t)
		e := d.routed(prompt(0, 100))
		observer{d.x}.EndpointRemoved(e.Candidate.Ref)
		d.done(e, 0)
		assert.Empty(t, d.x.Stats().Endpoints)
	})
	t.Run("not a request that failed after its first token", func(t *testing.T) {
		d := newFilled(t)
		e := d.routed(prompt(0, 100))
		observer{d.x}.FirstToken(e)
		e.FirstTokenAt = e.FirstTokenAt.AddDate(1, 0, 0)
		observer{d.x}.Done(e, &endpick.Outcome{Status: endpick.Failed, HasCachedTokens: true})
		assert.Len(t, d.ages(voteLacked), 1)
	})
}

// An engine that runs a prompt has room for it.
func TestTrustLongPrompt(t *testing.T) {
	d := newFixture(t, 1600)
	d.fill(0, 1)
	d.cache().trust.learned = 150
	e := d.routed(prompt(1, 900))
	assert.Equal(t, 150, d.capacity(), "nobody knows yet")
	d.done(e, 0)
	assert.Equal(t, 900, d.capacity())
	assert.Equal(t, 900, d.cache().held)
	d.done(d.routed(prompt(2, 2000)), 0)
	assert.Equal(t, 1600, d.capacity(), "the bound all the same")
}

// What is known only from a response has no vote: engines that don't keep
// answers, or whose templates drop reasoning, may have room all the same. A
// missing prompt counts as usual.
func TestTrustVotesOfResponses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		cached int // blocks, of 50 of the prompt and 100 of the response
		had    votes
		lacked votes
	}{
		// The conversation is 1,050 blocks old.
		{name: "all there", cached: 150, had: votes{1050: 1}, lacked: votes{}},
		{name: "the prompt is", cached: 50, had: votes{1050: 1}, lacked: votes{}},
		{name: "nearly", cached: 36, had: votes{1050: 1}, lacked: votes{}},            // 8 and an eighth of 50 may be missing
		{name: "half of the prompt", cached: 25, had: votes{}, lacked: votes{925: 1}}, // the first of 125 missing ones was 925 old
		{name: "nothing", cached: 0, had: votes{}, lacked: votes{900: 1}},
		{name: "more than both", cached: 170, had: votes{1050: 1}, lacked: votes{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newFixture(t, 1600)
			all := prompt(0, 180)
			observer{d.x}.Done(d.routed(all[:50]), &endpick.Outcome{Blocks: all[:150]})
			d.fill(1, 9)
			d.cache().trust.grain.tokens = 16
			d.done(d.routed(all), 16*tc.cached)
			d.voted(tc.had, tc.lacked)
		})
	}

	// A prompt that includes it makes it a prompt.
	d := newFixture(t, 1600)
	all := prompt(0, 130)
	observer{d.x}.Done(d.routed(all[:50]), &endpick.Outcome{Blocks: all[:100]})
	d.done(d.routed(all[:100]), 16*50)
	d.fill(1, 9)
	d.cache().trust.grain.tokens = 16
	d.done(d.routed(all[:130]), 16*50)
	d.voted(nil, votes{950: 1})

	// Only what follows the prompt is a response, even if the prompt was evicted
	// before the answer was complete.
	d = newFixture(t, 1600)
	e := d.routed(all[:50])
	observer{d.x}.FirstToken(e)
	d.fill(100, 17)
	observer{d.x}.Done(e, &endpick.Outcome{Blocks: all[:100]})
	d.routed(all)
	l := d.x.leases.Find(d.key)
	assert.Equal(t, []int{100, 50}, []int{l.matched, l.proven})

	// What is known only from a response has no vote.
	d = newFixture(t, 1600)
	observer{d.x}.Done(d.routed(nil), &endpick.Outcome{Blocks: all[:100]})
	d.fill(1, 9)
	d.done(d.routed(all), 16*100)
	d.voted(nil, nil)

	d = newFixture(t, 1600)
	observer{d.x}.Done(d.routed(all), &endpick.Outcome{})
	// Answers don't raise a capacity that reports have lowered.
	d.cache().trust.learned = 110
	observer{d.x}.Done(d.routed(all[:100]), &endpick.Outcome{Blocks: all})
	assert.Equal(t, 110, d.capacity())
	assert.Equal(t, 110, d.cache().held)
	d.done(d.routed(all), 16*110)
	assert.Equal(t, 130, d.capacity())
}
