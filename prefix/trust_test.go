package prefix

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// Capacity 1,600, so that a sixteenth is 100 blocks.
func TestTrustReview(t *testing.T) {
	type votes = map[int]float32
	for _, tc := range []struct {
		name        string
		unknown     bool // size of the engine's cache
		learned     int
		rest        int
		had, lacked votes
		more        float32
		want        int
	}{
		{name: "no votes", want: 1600},
		{name: "an eighth at most", lacked: votes{8: 3}, want: 1400},
		{name: "a half at most", unknown: true, lacked: votes{4: 3}, want: 800},
		{name: "what the votes say", lacked: votes{15: 3}, want: 1500},
		{name: "what they say of an unknown size", unknown: true, lacked: votes{9: 3}, want: 900},
		{name: "no quorum for an unknown size", unknown: true, lacked: votes{9: 2.9}, want: 1600},
		{name: "no quorum", lacked: votes{8: 2.9}, want: 1600},
		{name: "beyond the capacity anyway", lacked: votes{16: 9}, want: 1600},
		// An LRU cache that has older blocks does not lack younger ones.
		{name: "older ones were there", lacked: votes{4: 5}, had: votes{8: 2.5}, want: 1600},
		{name: "but few", lacked: votes{4: 5}, had: votes{8: 2}, want: 1400},
		{name: "younger ones were there", lacked: votes{4: 3}, had: votes{2: 99}, want: 1400},
		// 14 sixteenths contradict 3.5 and 3 votes, 4 sixteenths 9, all 7.5.
		{name: "the fewest contradictions", lacked: votes{14: 4, 4: 3.5}, had: votes{4: 9}, want: 1400},
		{name: "the floor", learned: 26, lacked: votes{8: 3}, want: 25},
		{name: "the floor of an unknown size", unknown: true, learned: 40, lacked: votes{4: 3}, want: 25},
		{name: "never below it", learned: 25, lacked: votes{8: 3}, want: 25},

		{name: "rises after a rest", learned: 800, rest: 150, want: 850},
		{name: "not before", learned: 800, rest: 149, want: 800},
		{name: "not against votes", learned: 800, rest: 199, lacked: votes{8: 1}, want: 800},
		{name: "with few", learned: 800, rest: 199, lacked: votes{8: 0.9}, want: 850},
		{name: "at once where the engine had more", learned: 800, more: 4, lacked: votes{8: 1}, want: 850},
		{name: "the engine had more", lacked: votes{8: 5}, more: 2.5, want: 1600},
		{name: "for more, but not enough", learned: 800, more: 3, lacked: votes{8: 1}, want: 800},
		{name: "to the bound", learned: 1590, rest: 200, want: 1600},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &server{bound: 1600, whole: !tc.unknown}
			s.trust = trust{learned: tc.learned, rest: tc.rest, more: tc.more}
			for n, v := range tc.had {
				s.trust.had[n] = v
			}
			for n, v := range tc.lacked {
				s.trust.lacked[n] = v
			}
			before := s.capacity()
			s.trust.review(s)
			assert.Equal(t, tc.want, s.capacity())
			if tc.want < before {
				assert.EqualValues(t, 1, s.trust.lowered)
				s.trust.review(s)
				assert.Equal(t, tc.want, s.capacity(), "no quorum is left")
			}
			if tc.want > before {
				s.trust.review(s)
				assert.Equal(t, tc.want, s.capacity(), "one step a rest")
			}
		})
	}
	s := &server{bound: 1600}
	s.trust.had[6], s.trust.lacked[5], s.trust.more = 64, 32, 1
	s.trust.review(s)
	assert.Equal(t, []float32{62, 31, 31. / 32}, []float32{s.trust.had[6], s.trust.lacked[5], s.trust.more}, "votes fade by a 32nd")

	// A capacity that has risen to the limit is not learned any more: the limit may rise.
	s = &server{bound: 160, trust: trust{learned: 151, rest: 20}}
	s.trust.review(s)
	assert.Zero(t, s.trust.learned)
}

// fixture routes requests to one endpoint of 1,600 blocks.
type fixture struct {
	endpoint endpick.Endpoint
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
		Candidate: &endpick.Candidate{Endpoint: &d.endpoint, Ref: endpick.EndpointRef{Generation: 1}},
	}
	observer{d.x}.Routed(e)
	return e
}

func (d *fixture) done(e *endpick.Event, cachedTokens int) {
	observer{d.x}.Done(e, &endpick.Outcome{HasCachedTokens: true, CachedTokens: cachedTokens})
}

func (d *fixture) server() *server { return d.x.servers.Find(endpick.EndpointRef{Generation: 1}) }

func (d *fixture) capacity() int { return d.server().capacity() }

// votes returns the votes so far, by sixteenths.
func (d *fixture) votes() (had, lacked map[int]float32) {
	had, lacked = map[int]float32{}, map[int]float32{}
	for n := range d.server().trust.had {
		if v := d.server().trust.had[n]; v > 0 {
			had[n] = v
		}
		if v := d.server().trust.lacked[n]; v > 0 {
			lacked[n] = v
		}
	}
	return had, lacked
}

// prompt is n blocks that are unique to a number.
func prompt(number, n int) []uint64 {
	blocks := make([]uint64, n)
	for i := range blocks {
		blocks[i] = uint64(number)<<32 + uint64(i) + 1
	}
	return blocks
}

// fill routes so many prompts of 100 blocks, each of which is an epoch.
func (d *fixture) fill(n int) {
	for i := range n {
		d.done(d.routed(prompt(i, 100)), 0)
	}
	had, lacked := d.votes()
	require.Empty(d.t, had, "nothing was expected")
	require.Empty(d.t, lacked, "nothing was missing")
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
	held := func(tenant string) int {
		return d.x.accounts.at(d.x.findAccount(endpick.EndpointRef{Generation: 1}, tenant)).held
	}
	serve("first", 0, 30)
	d.server().trust.learned = 160
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
	greedy := func(tenant string) bool { return d.x.greedy(d.x.tenantOf(tenant)) }
	assert.Equal(t, [2]bool{false, true}, [2]bool{greedy("a"), greedy("b")})
	d.tenant = "a"
	for i := range 5 {
		d.routed(prompt(10+i, 50))
	}
	assert.Equal(t, [2]bool{false, true}, [2]bool{greedy("a"), greedy("b")})
}

func TestTrustVotes(t *testing.T) {
	type votes = map[int]float32
	sum := func(v votes) (all float32) {
		for _, weight := range v {
			all += weight
		}
		return all
	}
	for _, tc := range []struct {
		name   string
		which  int // of ten prompts, the oldest first
		cached int // blocks
		had    votes
		lacked votes
	}{
		// Prompt 0 is 1,000 blocks old.
		{"all there", 0, 100, votes{10: 1}, votes{}},
		{"nearly all there", 0, 80, votes{10: 1}, votes{}}, // 8 blocks and an eighth of the match may be missing
		{"one more, but within a grain", 0, 79, votes{}, votes{}},
		{"22 blocks missing", 0, 78, votes{}, votes{9: 1}}, // the first of them 978 old
		{"half of it", 0, 50, votes{}, votes{9: 1}},
		{"nothing", 0, 0, votes{}, votes{9: 1}},
		// 200 blocks old, of which 100 are others'.
		{"young", 8, 100, votes{2: 1}, votes{}},
		{"young and missing", 8, 0, votes{}, votes{1: 1}},
		// No other prompt was used after it.
		{"just used", 9, 100, votes{}, votes{}},
		{"just used and missing", 9, 0, votes{}, votes{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newFixture(t, 1600)
			d.fill(10)
			d.server().trust.grain = 16
			d.done(d.routed(prompt(tc.which, 100)), 16*tc.cached)
			had, lacked := d.votes()
			assert.Equal(t, tc.had, had)
			assert.Equal(t, tc.lacked, lacked)
			against := d.server().trust.against
			assert.Equal(t, sum(tc.lacked), against.most+against.others)
			all := d.server().trust.spoken
			assert.Equal(t, sum(tc.had)+sum(tc.lacked), all.most+all.others, "who votes against votes")
		})
	}
}

// What an older request uses stays longer than what is newer and not in use, so it adds to
// the age of that: 900 blocks were used since prompt 1 was, and 100 are in use.
func TestTrustCountsWhatIsInUse(t *testing.T) {
	d := newFixture(t, 1600)
	d.fill(10)
	d.routed(prompt(0, 100))
	d.done(d.routed(prompt(1, 100)), 16*100)
	had, lacked := d.votes()
	assert.Equal(t, map[int]float32{10: 1}, had)
	assert.Empty(t, lacked)
}

// What others need in prefill, or for responses, may have pushed out what is missing: room for
// 900 blocks that were used later, and for 200 more, was not enough.
func TestTrustCountsWhatWasNeededBesides(t *testing.T) {
	for _, tc := range []struct{ prefill, generated int }{{200, 0}, {0, 200}, {50, 150}} {
		d := newFixture(t, 1600)
		d.fill(10)
		d.server().trust.grain = 16
		d.routed(prompt(20, tc.prefill))
		e := endpick.Event{
			Lease:     endpick.LeaseRef{Slot: 100, Generation: 1},
			Request:   &endpick.Request{Blocks: prompt(0, 100), InputTokens: 1600},
			Candidate: &endpick.Candidate{Endpoint: &endpick.Endpoint{}, Ref: endpick.EndpointRef{Generation: 1}, InFlight: endpick.InFlight{OutputTokens: 16 * tc.generated}},
		}
		observer{d.x}.Routed(&e)
		d.done(&e, 0)
		had, lacked := d.votes()
		assert.Empty(t, had)
		assert.Equal(t, map[int]float32{11: 1}, lacked, "%+v", tc)
	}
}

// An endpoint that comes to have less room than was learned of it holds no more than that.
func TestCapacityIsWithinTheBound(t *testing.T) {
	for _, tc := range []struct{ learned, bound, want int }{{0, 160, 160}, {100, 160, 100}, {100, 80, 80}} {
		s := &server{bound: tc.bound, trust: trust{learned: tc.learned}}
		assert.Equal(t, tc.want, s.capacity(), "%+v", tc)
	}
}

// Everything about votes fades alike: how many there are, and whose they were.
func TestTrustFades(t *testing.T) {
	v := trust{more: 2, spoken: voices{1, 4, 8}, against: voices{2, 3, 5}}
	v.had[3], v.lacked[sixteenths] = 6, 7
	v.fade(0.5)
	want := trust{more: 1, spoken: voices{1, 2, 4}, against: voices{2, 1.5, 2.5}}
	want.had[3], want.lacked[sixteenths] = 3, 3.5
	assert.Equal(t, want, v)
}

func TestTrustVotesOfATenantWeighLessAndLess(t *testing.T) {
	d := newFixture(t, 16_000)
	for i := range 40 {
		d.done(d.routed(prompt(i, 100)), 0)
	}
	for i := range 3 {
		d.done(d.routed(prompt(i, 100)), 0)
	}
	d.tenant = "other"
	d.done(d.routed(prompt(3, 100)), 0)
	lacked := float32(0)
	for _, v := range d.server().trust.lacked {
		lacked += v
	}
	assert.InDelta(t, 1+1./2+1./3+1, lacked, 1e-6)
}

func TestTrustMoreThanExpected(t *testing.T) {
	d := newFixture(t, 1600)
	d.fill(1)
	d.done(d.routed(prompt(7, 100)), 8*16)
	assert.Zero(t, d.server().trust.more, "within the slack")
	d.done(d.routed(prompt(8, 100)), 9*16)
	assert.EqualValues(t, 1, d.server().trust.more)
}

// If there were few recent reports, their common divisor may be thousands of
// tokens: that is no grain within which missing tokens would be ignored.
func TestTrustIsNotBlindWithFewReports(t *testing.T) {
	d := newFixture(t, 8000)
	for i := range 10 {
		d.done(d.routed(prompt(i, 500)), 0)
	}
	d.done(d.routed(prompt(0, 500)), 300*16) // of 500 blocks 200 are missing, of 5,000 used
	had, lacked := d.votes()
	assert.Empty(t, had)
	assert.Equal(t, map[int]float32{9: 1}, lacked)
}

// Once an engine's reports have told how much it holds, what it has evicted for requests
// under way is known without Endpoint.KVTokens. Of 80 blocks, responses need the last 30.
func TestEvictedFromALearnedCache(t *testing.T) {
	d := newFixture(t, 1600)
	p := prompt(0, 80)
	d.done(d.routed(p), 0)
	c := []endpick.Candidate{{Ref: endpick.EndpointRef{Generation: 1}, InFlight: endpick.InFlight{OutputTokens: 16 * 50}}}
	match := func() int {
		d.x.Match(&endpick.Request{Blocks: p, InputTokens: 16*80 + 1}, c)
		return c[0].EvictedTokens / 16
	}
	assert.Zero(t, match(), "1,600 blocks are only as many as may be remembered")
	d.server().trust.learned = 100
	d.done(d.routed(nil), 0)
	assert.Equal(t, 30, match())
}

// Cached tokens beyond the remembered head were not expected.
func TestTrustOfAPromptThatWasCut(t *testing.T) {
	d := newFixture(t, 1600)
	long := prompt(0, 1600)
	d.done(d.routed(long[:1200]), 0)
	d.done(d.routed(prompt(1, 100)), 0)
	d.routed(prompt(2, 1500)) // pending; there is room for 100 more
	d.done(d.routed(long), 1600*16)
	had, lacked := d.votes()
	assert.Equal(t, map[int]float32{13: 1}, had, "1,300 blocks old")
	assert.Empty(t, lacked)
	assert.Zero(t, d.server().trust.more)
}

func TestTrustScalesGuessedTokens(t *testing.T) {
	d := newFixture(t, 1600)
	d.fill(10)
	e := d.routed(prompt(0, 100))
	// The guess was 1,600 tokens, the engine counts 800. Its 720 are 90 of 100
	// blocks; as they stand they would be 45.
	observer{d.x}.Done(e, &endpick.Outcome{HasCachedTokens: true, CachedTokens: 720, InputTokens: 800})
	had, lacked := d.votes()
	assert.Len(t, had, 1)
	assert.Empty(t, lacked)

	// So is the grain: 400 tokens of 800 are 50 of 100 blocks, within which a
	// missing half means nothing.
	d = newFixture(t, 1600)
	d.fill(10)
	d.server().trust.grain = 400
	observer{d.x}.Done(d.routed(prompt(0, 100)), &endpick.Outcome{HasCachedTokens: true, CachedTokens: 400, InputTokens: 800})
	had, lacked = d.votes()
	assert.Empty(t, had)
	assert.Empty(t, lacked)
}

func TestTrustIgnores(t *testing.T) {
	quiet := func(t *testing.T, d *fixture) {
		t.Helper()
		had, lacked := d.votes()
		assert.Empty(t, had)
		assert.Empty(t, lacked)
	}
	t.Run("null", func(t *testing.T) {
		d := newFixture(t, 1600)
		d.fill(10)
		observer{d.x}.Done(d.routed(prompt(0, 100)), &endpick.Outcome{})
		quiet(t, d)
	})
	t.Run("a head that was still in prefill", func(t *testing.T) {
		d := newFixture(t, 1600)
		d.routed(prompt(0, 100))
		second := d.routed(prompt(0, 100))
		d.fill(10)
		d.done(second, 0)
		quiet(t, d)
	})
	t.Run("a tail that was still in prefill, behind a head that is old", func(t *testing.T) {
		d := newFixture(t, 1600)
		d.fill(10)
		d.server().trust.grain = 16
		long := append(prompt(0, 100), prompt(100, 100)...)
		d.routed(long)
		d.done(d.routed(long), 100*16)
		quiet(t, d)
	})
	t.Run("a request that failed", func(t *testing.T) {
		d := newFixture(t, 1600)
		d.fill(10)
		observer{d.x}.Done(d.routed(prompt(0, 100)), &endpick.Outcome{Status: endpick.Failed, HasCachedTokens: true})
		quiet(t, d)
	})
	t.Run("an endpoint that has gone", func(t *testing.T) {
		d := newFixture(t, 1600)
		d.fill(10)
		e := d.routed(prompt(0, 100))
		observer{d.x}.EndpointRemoved(e.Candidate.Ref)
		d.done(e, 0)
		assert.Empty(t, d.x.Stats().Endpoints)
	})
	t.Run("not a request that failed after its first token", func(t *testing.T) {
		d := newFixture(t, 1600)
		d.fill(10)
		e := d.routed(prompt(0, 100))
		observer{d.x}.FirstToken(e)
		e.FirstTokenAt = e.FirstTokenAt.AddDate(1, 0, 0)
		observer{d.x}.Done(e, &endpick.Outcome{Status: endpick.Failed, HasCachedTokens: true})
		_, lacked := d.votes()
		assert.Len(t, lacked, 1)
	})
}

// An engine that runs a prompt has room for it.
func TestTrustLongPrompt(t *testing.T) {
	d := newFixture(t, 1600)
	d.fill(1)
	d.server().trust.learned = 150
	e := d.routed(prompt(1, 900))
	assert.Equal(t, 150, d.capacity(), "nobody knows yet")
	d.done(e, 0)
	assert.Equal(t, 900, d.capacity())
	assert.Equal(t, 900, d.server().held)
	d.done(d.routed(prompt(2, 2000)), 0)
	assert.Equal(t, 1600, d.capacity(), "the bound all the same")
}

// What is known only from a response has no vote: engines that don't keep
// answers, or whose templates drop reasoning, may have room all the same. A
// missing prompt counts as usual.
func TestTrustVotesOfResponses(t *testing.T) {
	type votes = map[int]float32
	for _, tc := range []struct {
		name   string
		cached int // blocks, of 50 of the prompt and 100 of the response
		had    votes
		lacked votes
		more   float32
	}{
		// The conversation is 1,050 blocks old.
		{name: "all there", cached: 150, had: votes{10: 1}, lacked: votes{}},
		{name: "the prompt is", cached: 50, had: votes{10: 1}, lacked: votes{}},
		{name: "nearly", cached: 36, had: votes{10: 1}, lacked: votes{}},            // 8 and an eighth of 50 may be missing
		{name: "half of the prompt", cached: 25, had: votes{}, lacked: votes{9: 1}}, // the first of 125 missing ones was 925 old
		{name: "nothing", cached: 0, had: votes{}, lacked: votes{9: 1}},             // 900
		{name: "more than both", cached: 170, had: votes{}, lacked: votes{}, more: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newFixture(t, 1600)
			all := prompt(0, 180)
			observer{d.x}.Done(d.routed(all[:50]), &endpick.Outcome{Blocks: all[:150]})
			for i := range 9 {
				d.done(d.routed(prompt(1+i, 100)), 0)
			}
			d.server().trust.grain = 16
			d.done(d.routed(all), 16*tc.cached)
			had, lacked := d.votes()
			assert.Equal(t, tc.had, had)
			assert.Equal(t, tc.lacked, lacked)
			assert.Equal(t, tc.more, d.server().trust.more)
		})
	}

	// A prompt that includes it makes it a prompt.
	d := newFixture(t, 1600)
	all := prompt(0, 130)
	observer{d.x}.Done(d.routed(all[:50]), &endpick.Outcome{Blocks: all[:100]})
	d.done(d.routed(all[:100]), 16*50)
	for i := range 9 {
		d.done(d.routed(prompt(1+i, 100)), 0)
	}
	d.server().trust.grain = 16
	d.done(d.routed(all[:130]), 16*50)
	_, lacked := d.votes()
	assert.Equal(t, votes{9: 1}, lacked)

	// Only what follows the prompt is a response, even if the prompt was evicted
	// before the answer was complete.
	d = newFixture(t, 1600)
	e := d.routed(all[:50])
	observer{d.x}.FirstToken(e)
	for i := range 17 {
		d.done(d.routed(prompt(100+i, 100)), 0)
	}
	observer{d.x}.Done(e, &endpick.Outcome{Blocks: all[:100]})
	d.routed(all)
	l := d.x.leases.Find(d.key)
	assert.Equal(t, []int{100, 50}, []int{l.matched, l.proven})

	// What is known only from a response has no vote.
	d = newFixture(t, 1600)
	observer{d.x}.Done(d.routed(nil), &endpick.Outcome{Blocks: all[:100]})
	for i := range 9 {
		d.done(d.routed(prompt(1+i, 100)), 0)
	}
	d.done(d.routed(all), 16*100)
	had, lacked := d.votes()
	assert.Empty(t, had)
	assert.Empty(t, lacked)

	d = newFixture(t, 1600)
	observer{d.x}.Done(d.routed(all), &endpick.Outcome{})
	// Answers don't raise a capacity that reports have lowered.
	d.server().trust.learned = 110
	observer{d.x}.Done(d.routed(all[:100]), &endpick.Outcome{Blocks: all})
	assert.Equal(t, 110, d.capacity())
	assert.Equal(t, 110, d.server().held)
	d.done(d.routed(all), 16*110)
	assert.Equal(t, 130, d.capacity())
}

// A capacity that has been raised is only raised again for new votes.
func TestTrustIsRaisedOnceForItsVotes(t *testing.T) {
	s := &server{bound: 1600}
	s.trust.learned, s.trust.more = 160, 2*quorum
	s.trust.review(s)
	assert.Equal(t, 170, s.trust.learned)
	for range 3 {
		s.trust.review(s)
		assert.Equal(t, 170, s.trust.learned)
	}
}
