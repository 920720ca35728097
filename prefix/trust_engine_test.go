package prefix

import (
	"fmt"
	"slices"
	"testing"

	"github.com/endpick/endpick"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// cacheModel is an LRU cache of so many blocks that counts in grains of tokens.
type cacheModel struct {
	room  int
	grain int
	uses  []uint64       // blocks, in order of use
	last  map[uint64]int // index in uses of each block's last use, from 1
	from  int            // everything before is evicted
}

// serve returns how many tokens of a prompt the engine has cached, and caches all of them.
func (c *cacheModel) serve(blocks []uint64) (tokens int) {
	n := 0
	for n < len(blocks) && c.last[blocks[n]] > 0 {
		n++
	}
	for _, b := range slices.Backward(blocks) {
		c.uses = append(c.uses, b)
		c.last[b] = len(c.uses)
	}
	for ; len(c.last) > c.room; c.from++ {
		if b := c.uses[c.from]; c.last[b] == c.from+1 {
			delete(c.last, b)
		}
	}
	return min(16*n, 16*len(blocks)-1) / c.grain * c.grain
}

// Prompts of all lengths come back after others were used. The engine lacks
// none; it counts in blocks of its own.
func TestTrustLearnsTheGrain(t *testing.T) {
	for _, grain := range []int{1, 16, 544, 1056} {
		t.Run(fmt.Sprint("grain=", grain), func(t *testing.T) {
			d := newFixture(t, 3000)
			engine := &cacheModel{room: 3000, grain: grain, last: map[uint64]int{}}
			chance := uint64(1)
			for range 2000 {
				chance = chance*6364136223846793005 + 1442695040888963407
				n := int(chance>>33) % 30
				if chance>>63 == 1 {
					n %= 3 // and some at once
				}
				blocks := prompt(n, 20+7*n)
				d.done(d.routed(blocks), engine.serve(blocks))
				require.Greater(t, d.capacity(), 2500)
			}
			assert.Equal(t, 3000, d.capacity())
		})
	}
}

func TestTrustThirtyOneZeros(t *testing.T) {
	for _, tenants := range []int{1, 31} {
		t.Run(fmt.Sprint("tenants=", tenants), func(t *testing.T) {
			d := newFixture(t, 10_000)
			for i := range 166 {
				d.done(d.routed(prompt(i, 60)), 0)
			}
			for i := range 31 {
				d.tenant = fmt.Sprint(i % tenants)
				d.done(d.routed(prompt(i, 60)), 0)
			}
			assert.Greater(t, d.capacity(), 6500)
			// And up again, without a report from the engine.
			d.tenant = ""
			for i := range 1000 {
				observer{d.x}.Done(d.routed(prompt(1000+i, 60)), &endpick.Outcome{})
			}
			assert.Equal(t, 10_000, d.capacity())
		})
	}
}

// One tenant whose prompts are never cached does not reduce another's room.
func TestTrustIsolatesTenants(t *testing.T) {
	d := newFixture(t, 2000)
	for round := range 300 {
		for i := range 5 {
			d.tenant = "bad"
			d.done(d.routed(prompt(i, 60)), 0)
		}
		for i := range 5 {
			d.tenant = "good"
			d.done(d.routed(prompt(100+(5*round+i)%20, 60)), 60*16)
		}
	}
	assert.Greater(t, d.capacity(), 1500)
}

func TestTrustWithoutACache(t *testing.T) {
	d := newFixture(t, 10_000)
	chance := uint64(1)
	for range 3000 {
		chance = chance*6364136223846793005 + 1442695040888963407
		u := float64(chance>>11) / (1 << 53)
		d.done(d.routed(prompt(int(u*u*160), 60)), 0)
	}
	assert.Less(t, d.capacity(), 1250)
}

// An engine with an LRU cache a quarter of what the index assumes: the learned
// capacity comes close to the true one, and wrong matches become rare.
func TestTrustFindsTheEngine(t *testing.T) {
	for _, room := range []int{100, 250, 400} {
		for _, sessions := range []int{30, 50} {
			t.Run(fmt.Sprintf("room=%d/sessions=%d", room, sessions), func(t *testing.T) {
				capacity, wrong := serveSessions(t, room, sessions, true)
				_, wrongBefore := serveSessions(t, room, sessions, false)
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

// serveSessions sends requests to an engine and returns the learned capacity,
// and the share of matched blocks that the engine did not have.
func serveSessions(t *testing.T, room, sessions int, report bool) (capacity int, wrong float64) {
	d := newFixture(t, 4*room)
	engine := &cacheModel{room: room, grain: 16, last: map[uint64]int{}}
	promised, missing := 0, 0
	chance := uint64(1)
	const requests = 3000
	for n := range requests {
		// 4 blocks that all share, and 28 of the session. Sessions are unequally
		// busy: the square of a uniform number.
		chance = chance*6364136223846793005 + 1442695040888963407
		u := float64(chance>>11) / (1 << 53)
		blocks := append(prompt(0, 4), prompt(1+int(u*u*float64(sessions)), 28)...)
		cached := engine.serve(blocks)
		e := d.routed(blocks)
		if n >= requests/2 {
			matched := d.x.leases.Find(e.Lease).matched
			promised += matched
			missing += max(matched-cached/16, 0)
		}
		observer{d.x}.Done(e, &endpick.Outcome{HasCachedTokens: report, CachedTokens: cached})
	}
	return d.capacity(), float64(missing) / float64(promised)
}

// Where nothing is said about the size of an engine's cache, a million tokens are expected. An
// engine that holds fewer says so, and is known by the time that it has read two million; after a
// restart, too.
func TestTrustLearnsAnUnknownSize(t *testing.T) {
	for _, room := range []int{1250, 5000, 20_000} {
		t.Run(fmt.Sprint("room=", room), func(t *testing.T) {
			d := newFixture(t, 0)
			engine := &cacheModel{room: room, grain: 16, last: map[uint64]int{}}
			chance := uint64(1)
			serve := func(blocks int) {
				for used := 0; used < blocks; {
					chance = chance*6364136223846793005 + 1442695040888963407
					n := int(chance>>33) % (room / 16) // four times as many as it holds
					p := prompt(n, 49+n%31)            // so that the grain is known
					used += len(p)
					d.done(d.routed(p), engine.serve(p))
				}
			}
			serve(2 * defaultBlocks)
			t.Logf("after two million tokens: %d", d.capacity())
			require.Greater(t, d.capacity(), room/2)
			require.Less(t, d.capacity(), 2*room)

			clear(engine.last)
			serve(2 * defaultBlocks)
			t.Logf("after a restart and two million more: %d", d.capacity())
			require.Greater(t, d.capacity(), room/2)
			require.Less(t, d.capacity(), 2*room)
		})
	}
}
