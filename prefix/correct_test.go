package prefix

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/endpick/endpick"
)

// desk routes requests to one endpoint of 100 blocks.
type desk struct {
	t   testing.TB
	x   *Index
	key endpick.LeaseRef
}

func newDesk(t testing.TB) *desk {
	x, err := NewIndex(IndexConfig{BlocksPerEndpoint: 100})
	require.NoError(t, err)
	return &desk{t: t, x: x}
}

func (d *desk) routed(blocks []uint64) *endpick.Event {
	d.key.Slot++
	d.key.Generation++
	e := &endpick.Event{
		Lease:     d.key,
		Request:   &endpick.Request{Blocks: blocks, InputTokens: 16 * len(blocks)},
		Candidate: &endpick.Candidate{Endpoint: &endpick.Endpoint{}, Ref: endpick.Ref{Generation: 1}},
	}
	d.x.Routed(e)
	return e
}

func (d *desk) done(e *endpick.Event, cachedTokens int) {
	d.x.Done(e, &endpick.Outcome{HasCachedTokens: true, CachedTokens: cachedTokens})
	require.NoError(d.t, d.x.check())
}

func (d *desk) capacity() int { return d.x.servers[0].capacity() }

// prompt is 20 blocks that nobody else has.
func prompt(n int) []uint64 {
	blocks := make([]uint64, 20)
	for i := range blocks {
		blocks[i] = uint64(n)<<32 + uint64(i) + 1
	}
	return blocks
}

// fill routes prompts 0 to 4, which fill the 100 blocks.
func (d *desk) fill() {
	for i := range 5 {
		d.done(d.routed(prompt(i)), 0)
	}
	require.Equal(d.t, 100, d.x.servers[0].held)
	require.Equal(d.t, 100, d.capacity(), "nothing was expected, so that nothing was missing")
}

func TestCorrectLowers(t *testing.T) {
	d := newDesk(t)
	d.fill()
	// Prompt 0 is the oldest: D = 100 blocks were used since. All M = 20 are
	// missing. 100 − 20 = 80 is above three quarters of 100.
	d.done(d.routed(prompt(0)), 0)
	assert.Equal(t, 80, d.capacity())
	// It is the newest now, D = 20: 20 − 20 = 0. So three quarters of 80, of
	// 60, of 45 (45 − 11), of 34 (34 − 8); then the prompt itself.
	for _, want := range []int{60, 45, 34, 26, 20, 20} {
		d.done(d.routed(prompt(0)), 0)
		assert.Equal(t, want, d.capacity())
		assert.Equal(t, want, d.x.servers[0].held)
	}
}

// An engine that runs a prompt has room for it.
func TestCorrectLongPrompt(t *testing.T) {
	d := newDesk(t)
	d.fill()
	for range 7 {
		d.done(d.routed(prompt(0)), 0)
	}
	require.Equal(t, 20, d.capacity())
	long := append(prompt(0), prompt(1)...)
	d.done(d.routed(long), 19*16)
	assert.Equal(t, 40, d.capacity())
	assert.Equal(t, 40, d.x.servers[0].held)
	for i := range 4 {
		long = append(long, prompt(i+2)...)
	}
	d.done(d.routed(long), 40*16)
	assert.Equal(t, 100, d.capacity(), "the bound all the same")
}

func TestCorrectSlack(t *testing.T) {
	for _, tc := range []struct{ cachedTokens, want int }{
		{20 * 16, 100}, {19 * 16, 100},
		{10 * 16, 100}, // 10 blocks missing: 8 and an eighth of 20 don't count
		{10*16 - 1, 89},
		{9 * 16, 89}, // 100 − 11
	} {
		d := newDesk(t)
		d.fill()
		d.done(d.routed(prompt(0)), tc.cachedTokens)
		assert.Equal(t, tc.want, d.capacity(), "%d cached tokens", tc.cachedTokens)
	}
}

func TestCorrectRises(t *testing.T) {
	d := newDesk(t)
	d.fill()
	d.done(d.routed(prompt(0)), 0) // 80: prompts 0, 4, 3, 2
	// Prompt 0 is too new to prove anything: D = 20 is below 60.
	d.done(d.routed(prompt(0)), 19*16)
	assert.Equal(t, 80, d.capacity())
	// Prompt 2 is the oldest, D = 80: 80 + 80/16.
	d.done(d.routed(prompt(2)), 19*16)
	assert.Equal(t, 85, d.capacity())
	// More than was expected, by more than the slack of 8: 85 + 85/16.
	d.done(d.routed(prompt(7)), 9*16)
	assert.Equal(t, 90, d.capacity())
	d.done(d.routed(prompt(8)), 8*16)
	assert.Equal(t, 90, d.capacity())
	// 95, 100 and no more: what is learned never exceeds the bound.
	for range 5 {
		for i := range 5 {
			d.done(d.routed(prompt(i)), 19*16)
		}
	}
	assert.Equal(t, 100, d.capacity())
	assert.Zero(t, d.x.servers[0].learned)
}

func TestCorrectScalesGuessedTokens(t *testing.T) {
	d := newDesk(t)
	d.fill()
	e := d.routed(prompt(0))
	// The guess was 320 tokens, the engine counts 160. Its 80 are half the
	// prompt, 10 blocks; as they stand they would be 5, and 15 missing.
	d.x.Done(e, &endpick.Outcome{HasCachedTokens: true, CachedTokens: 80, InputTokens: 160})
	assert.Equal(t, 100, d.capacity())
}

func TestCorrectIgnores(t *testing.T) {
	t.Run("null", func(t *testing.T) {
		d := newDesk(t)
		d.fill()
		d.x.Done(d.routed(prompt(0)), &endpick.Outcome{})
		assert.Equal(t, 100, d.capacity())
	})
	t.Run("a head that was still in prefill", func(t *testing.T) {
		d := newDesk(t)
		first := d.routed(prompt(0))
		second := d.routed(prompt(0))
		d.x.FirstToken(first)
		third := d.routed(prompt(0))
		d.done(second, 0)
		assert.Equal(t, 100, d.capacity(), "the second was routed before the first token of the first")
		d.done(third, 0)
		assert.Equal(t, 75, d.capacity(), "the third after it")
		d.done(first, 0)
		assert.Equal(t, 75, d.capacity(), "the first expected nothing")
	})
	t.Run("another head in prefill does not matter", func(t *testing.T) {
		d := newDesk(t)
		d.done(d.routed(prompt(0)), 0)
		d.routed(prompt(1))
		d.done(d.routed(prompt(0)), 0)
		assert.Equal(t, 75, d.capacity())
	})
	t.Run("a request that failed", func(t *testing.T) {
		d := newDesk(t)
		d.fill()
		d.x.Done(d.routed(prompt(0)), &endpick.Outcome{Status: endpick.Failed, HasCachedTokens: true})
		assert.Equal(t, 100, d.capacity())
	})
	t.Run("an endpoint that has gone", func(t *testing.T) {
		d := newDesk(t)
		d.fill()
		e := d.routed(prompt(0))
		d.x.EndpointRemoved(e.Candidate.Ref)
		d.done(e, 0)
		assert.Empty(t, d.x.Stats().Endpoints)
	})
}

func TestRetract(t *testing.T) {
	failed := &endpick.Outcome{Status: endpick.Failed}
	held := func(d *desk) int { return d.x.servers[0].held }

	t.Run("what only it brought", func(t *testing.T) {
		d := newDesk(t)
		d.done(d.routed(prompt(0)[:5]), 0)
		e := d.routed(prompt(0))
		assert.Equal(t, 20, held(d))
		d.x.Done(e, failed)
		assert.Equal(t, 5, held(d))
	})
	t.Run("not after the first token", func(t *testing.T) {
		d := newDesk(t)
		e := d.routed(prompt(0))
		d.x.FirstToken(e)
		e.FirstTokenAt = e.FirstTokenAt.AddDate(1, 0, 0)
		d.x.Done(e, failed)
		assert.Equal(t, 20, held(d))
	})
	t.Run("not what others went on from", func(t *testing.T) {
		d := newDesk(t)
		e := d.routed(prompt(0)[:10])
		longer := d.routed(prompt(0))
		d.x.Done(e, failed)
		assert.Equal(t, 20, held(d))
		d.x.Done(longer, failed)
		assert.Equal(t, 10, held(d))
	})
}

// An engine with an LRU cache a quarter of what the index would believe. The
// capacity that is learned comes close to the true one, and false promises
// become few.
func TestCorrectFindsTheEngine(t *testing.T) {
	for _, room := range []int{100, 250, 400} {
		for _, sessions := range []int{30, 50} {
			for seed := range uint64(1) {
				t.Run(fmt.Sprintf("room=%d/sessions=%d/seed=%d", room, sessions, seed), func(t *testing.T) {
					capacity, wrong := serveSessions(t, room, sessions, seed, true)
					_, wrongBefore := serveSessions(t, room, sessions, seed, false)
					t.Logf("capacity %d, blocks promised in vain %.3f, without correction %.3f", capacity, wrong, wrongBefore)
					require.Greater(t, wrongBefore, 0.1, "the case is worth a test")
					require.Less(t, wrong, wrongBefore/2)
					require.Less(t, wrong, 0.2)
					require.Greater(t, capacity, room/2)
					require.Less(t, capacity, room*2)
				})
			}
		}
	}
}

// serveSessions sends requests to an engine and returns the capacity learned,
// and which share of the matched blocks the engine did not have.
func serveSessions(t *testing.T, room, sessions int, seed uint64, report bool) (capacity int, wrong float64) {
	x, err := NewIndex(IndexConfig{BlocksPerEndpoint: 4 * room})
	require.NoError(t, err)
	engine := &twinEndpoint{}
	promised, missing := 0, 0
	const requests = 2000
	for n := range requests {
		// 4 blocks that all have, 28 of the session. Sessions are not equally
		// busy: the square of a uniform number.
		seed = mix(seed, uint64(n)+1)
		u := float64(seed>>11) / (1 << 53)
		session := int(u * u * float64(sessions))
		blocks := make([]uint64, 32)
		for i := range blocks {
			blocks[i] = uint64(i + 1)
			if i >= 4 {
				blocks[i] += uint64(64 * (session + 1))
			}
		}
		cached := engine.serve(session, room)
		e := &endpick.Event{
			Lease:     endpick.LeaseRef{Generation: uint32(n) + 1},
			Request:   &endpick.Request{Blocks: blocks, InputTokens: 16*len(blocks) + 1},
			Candidate: &endpick.Candidate{Ref: endpick.Ref{Generation: 1}},
		}
		x.Routed(e)
		if n >= requests/2 {
			matched := x.leases[0].matched
			promised += matched
			missing += max(matched-cached, 0)
		}
		x.Done(e, &endpick.Outcome{HasCachedTokens: report, CachedTokens: 16 * cached})
	}
	return x.servers[0].capacity(), float64(missing) / float64(promised)
}

// serve returns how many blocks of a session's prompt the engine has, and then
// has them all, within its room.
func (e *twinEndpoint) serve(session, room int) int {
	all := make([]string, 32)
	for i := range all {
		all[i] = fmt.Sprint(i)
		if i >= 4 {
			all[i] = fmt.Sprint(session, ".", i)
		}
	}
	return e.use(all, room)
}
