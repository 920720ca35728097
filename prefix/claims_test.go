package prefix

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/endpick/endpick"
)

// claimant routes prompts to one endpoint, whose engine computes them at once.
type claimant struct {
	*Index
	key       endpick.LeaseRef
	candidate endpick.Candidate
}

func newClaimant(t testing.TB, blocks int) *claimant {
	x, err := NewIndex(IndexConfig{BlocksPerEndpoint: blocks})
	if err != nil {
		t.Fatal(err)
	}
	return &claimant{Index: x, candidate: endpick.Candidate{Endpoint: &endpick.Endpoint{}, Ref: endpick.Ref{Generation: 1}}}
}

func minute(n int) time.Time { return time.Unix(0, 0).Add(time.Duration(n) * time.Minute) }

// serve routes a prompt that is computed, or refused.
func (c *claimant) serve(n int, status endpick.Status, blocks []uint64) {
	c.key.Generation++
	e := endpick.Event{
		Lease: c.key, Request: &endpick.Request{Blocks: blocks, InputTokens: 16 * len(blocks)}, Candidate: &c.candidate, Now: minute(n),
	}
	c.Routed(&e)
	c.Done(&e, &endpick.Outcome{Status: status})
}

// displaced is Displaced for a request that needs so many blocks.
func (c *claimant) displaced(n, blocks int) float64 {
	r := endpick.Request{InputTokens: 16 * blocks}.At(minute(n), 1, 1)
	return c.Displaced(&r, &c.candidate) / 16
}

// What is used again was idle for as long as its end was, however recently its head was
// used with another end.
func TestWhatIsUsedAgainWasIdleToItsEnd(t *testing.T) {
	c := newClaimant(t, 1600)
	whole := prompt(1, 200)
	c.serve(0, endpick.Completed, whole)
	c.serve(1, endpick.Completed, prompt(2, 100))
	c.serve(60, endpick.Completed, whole[:100])
	c.serve(61, endpick.Completed, prompt(3, 100))
	c.serve(62, endpick.Completed, prompt(4, 100))
	before := c.claims.used
	c.serve(65, endpick.Completed, whole)
	assert.InDelta(t, 200, c.claims.used[idleTime(64*time.Minute)]-before[idleTime(64*time.Minute)], 10)
	assert.LessOrEqual(t, c.claims.used[idleTime(4*time.Minute)], before[idleTime(4*time.Minute)])
}

// What was the last to be used, and is used again, is as new as that.
func TestWhatIsUsedTwiceIsIdleSinceThen(t *testing.T) {
	c := newClaimant(t, 1600)
	c.serve(0, endpick.Completed, prompt(1, 100))
	c.serve(60, endpick.Completed, prompt(1, 100))
	c.serve(61, endpick.Completed, prompt(2, 100))
	c.serve(62, endpick.Completed, prompt(1, 100))
	assert.InDelta(t, 100, c.claims.used[idleTime(time.Minute)], 10, "since the next was used")
}

// Room for 1,600 blocks, and a prompt of 100 per minute, so that each is an epoch.
func TestDisplaced(t *testing.T) {
	c := newClaimant(t, 1600)
	assert.Zero(t, c.displaced(0, 1000), "nothing is known of the endpoint")
	for i := range 16 {
		c.serve(i, endpick.Completed, prompt(i, 100))
	}
	assert.Zero(t, c.displaced(16, 100), "nothing was asked for again so far")
	c.serve(16, endpick.Completed, prompt(1, 100))  // idle for at least 14 minutes
	c.serve(17, endpick.Completed, prompt(16, 100)) // prompt 0 is evicted, idle for 16
	c.serve(17, endpick.Failed, prompt(2, 100))
	// Both are within 13.7 and 27.3 minutes; the used ones have faded twice by a 32nd.
	used := 100. * 31 / 32 * 31 / 32
	share := used / (used + 100)
	assert.InDelta(t, 100*share, c.displaced(18, 100), 1e-9, "the least recently used are idle for 15 minutes")
	assert.InDelta(t, 150*share, c.displaced(18, 150), 1e-9, "and for 14")
	assert.InDelta(t, 1600*share, c.displaced(18, 9999), 1e-9, "no more than there is")
	assert.InDelta(t, 100*share, c.displaced(30, 100), 1e-9)
	longer := endpick.Request{InputTokens: 3200, BlockTokens: 32}.At(minute(18), 1, 1)
	assert.InDelta(t, 3200*share, c.Displaced(&longer, &c.candidate), 1e-9, "in tokens, as many as the request's blocks have")
	assert.Zero(t, c.displaced(31, 100), "nobody was idle for 28 minutes and came back")

	// Blocks that are held already displace nothing; blocks that will be generated
	// do, and so do pending ones.
	r := endpick.Request{InputTokens: 16 * 100, ExpectedOutputTokens: 16 * 10}.At(minute(18), 1, 1)
	there := c.candidate
	there.PrefixTokens = 16 * 60
	assert.InDelta(t, 16*50*share, c.Displaced(&r, &there), 1e-9)
	c.key.Generation++
	c.Routed(&endpick.Event{Lease: c.key, Request: &endpick.Request{Blocks: prompt(30, 20), InputTokens: 16 * 20}, Candidate: &c.candidate, Now: minute(18)})
	assert.InDelta(t, 16*70*share, c.Displaced(&r, &there), 1e-9)
	there.Ref.Generation++
	assert.Zero(t, c.Displaced(&r, &there))
}

func TestDisplacedWithRoom(t *testing.T) {
	c := newClaimant(t, 1600)
	for i := range 40 {
		c.serve(i, endpick.Completed, prompt(i%15, 100))
	}
	assert.Zero(t, c.displaced(40, 100))
	assert.InDelta(t, 1, c.displaced(40, 101), 1e-9, "everything was used again so far")
	assert.Zero(t, testing.AllocsPerRun(100, func() { c.displaced(40, 1600) }))
}

// What runs and had to make room here needs its room at the engine all the same.
func TestDisplacedByWhatIsKept(t *testing.T) {
	c := newClaimant(t, 1600)
	c.key.Slot = 1
	open := endpick.Event{Lease: endpick.LeaseRef{Generation: 1}, Request: &endpick.Request{Blocks: prompt(0, 100), InputTokens: 1600}, Candidate: &c.candidate, Now: minute(0)}
	c.Routed(&open)
	c.FirstToken(&open)
	for i := range 16 {
		c.serve(1+i, endpick.Completed, prompt(1+i, 100))
	}
	c.claims.used[idleTimes-1] = 1e12 // all is used again
	c.claims.known.Store(0)
	assert.InDelta(t, 150, c.displaced(20, 50), 1e-3)
	c.Done(&open, &endpick.Outcome{})
	assert.InDelta(t, 50, c.displaced(20, 50), 1e-3)
}

// A prompt that no engine computes is no use, and a clock that is set back makes no
// age.
func TestClaimsOfTheRefused(t *testing.T) {
	c := newClaimant(t, 1600)
	for i := range 16 {
		c.serve(20-i, endpick.Completed, prompt(i, 100))
	}
	for range 100 {
		c.serve(40, endpick.Failed, prompt(1, 100))
	}
	assert.Zero(t, c.displaced(40, 100))
}

func TestIdleTimes(t *testing.T) {
	for d, want := range map[time.Duration]int{
		-time.Hour: 0, 0: 0, 99 * time.Millisecond: 0, 100 * time.Millisecond: 1, time.Second: 4, time.Hour: 16, 1 << 62: 31,
	} {
		assert.Equal(t, want, idleTime(d), d)
	}
}

func BenchmarkDisplaced(b *testing.B) {
	c := newClaimant(b, 1600)
	for i := range 40 {
		c.serve(i, endpick.Completed, prompt(i%15, 100))
	}
	b.ReportAllocs()
	for b.Loop() {
		c.displaced(40, 300)
	}
}

// A share is that of everything recorded so far, whenever it is computed.
func TestSharesFollowWhatIsNoted(t *testing.T) {
	var c claims
	const idle = time.Minute
	for _, step := range []struct {
		note func()
		want float64
	}{
		{func() {}, 0},
		{func() { c.use(idle, 30) }, 1},
		{func() { c.evict(idle, 10) }, 0.75},
		{func() { c.evict(2*idle, 20) }, 0.5},
		{func() { c.use(time.Second, 1000) }, 0.5}, // was not idle for as long
		{func() { c.use(2*idle, 60) }, 0.75},
		{func() { c.fade(0.5) }, 0.75},
		{func() { c.evict(idle, 60) }, 45. / 120}, // 45 used, 15 and 60 evicted
	} {
		step.note()
		assert.InDelta(t, step.want, c.share(idle), 1e-12)
	}
}
