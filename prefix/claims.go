package prefix

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
)

// claims learns how much of what was idle for so long is asked for again.
//
// A conversation pauses, for a tool or for its human, and its blocks age. The
// engine forgets the least recently used ones first, whatever a router would have
// it keep; but a router decides which engine has to. By the time when something is
// about to be forgotten, most tools have answered, so that the time for which it
// was idle tells more than what it waits for.
//
// Blocks are weighed by how they ended: used again, or evicted. What is evicted
// and then asked for counts as evicted, which errs on the side of no claim. Nobody
// can claim for more than the blocks that the index lets a tenant hold, nor more
// than that they are certain to be used again.
type claims struct {
	used    [idleTimes]float64 // blocks, by the time for which they were idle
	evicted [idleTimes]float64

	// shares is what share returns, by idle time, as float bits, as long as it is
	// known. Readers compute it, at the same time if need be: all the same.
	shares [idleTimes]atomic.Uint64
	known  atomic.Bool
}

// idleTimes are powers of two of 100 ms; the last one is 3.4 years.
const idleTimes = 32

func idleTime(d time.Duration) int {
	return min(bits.Len64(uint64(max(d, 0)/(100*time.Millisecond))), idleTimes-1)
}

// share is the part of what was idle for that time that is used again. It may be asked
// by many at once, but not while anything is noted.
func (c *claims) share(idle time.Duration) float64 {
	if !c.known.Load() {
		for from := range c.shares {
			var used, all float64
			for i := from; i < idleTimes; i++ {
				used += c.used[i]
				all += c.used[i] + c.evicted[i]
			}
			c.shares[from].Store(math.Float64bits(used / max(all, math.SmallestNonzeroFloat64)))
		}
		c.known.Store(true)
	}
	return math.Float64frombits(c.shares[idleTime(idle)].Load())
}

// use and evict note how blocks that were idle for so long have ended.
func (c *claims) use(idle time.Duration, blocks float64) {
	c.used[idleTime(idle)] += blocks
	c.known.Store(false)
}

func (c *claims) evict(idle time.Duration, blocks float64) {
	c.evicted[idleTime(idle)] += blocks
	c.known.Store(false)
}

// fade leaves a part of what was learned.
func (c *claims) fade(part float64) {
	for i := range c.used {
		c.used[i] *= part
		c.evicted[i] *= part
	}
	c.known.Store(false)
}

// Displaced is how many tokens of other prompts the endpoint of a candidate, whose
// PrefixTokens are set, is expected to have to compute again because the request
// takes the place of their blocks: those that its engine would forget, as many as
// the prompt and the expected output need, each by the share of such blocks that
// were used again. 0 while there is room.
//
// It is what a cold prompt costs others, to be added to what it costs itself: see
// slo.BestFitConfig.
func (x *Index) Displaced(req *endpick.Request, c *endpick.Candidate) float64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	s := x.servers.Find(c.Ref)
	if s == nil {
		return 0
	}
	capacity := s.capacity()
	needed := float64(c.NewTokens(req)+max(req.ExpectedOutputTokens, 0)) / req.Block()
	over := s.held + s.pending + int(min(needed, float64(capacity))) - capacity
	again := 0.0
	for back := uint32(epochs - 1); back < epochs && over > 0; back-- {
		epoch := s.ages.newest - back
		if n := min(over, int(*s.ages.at(epoch))); n > 0 {
			again += float64(n) * x.claims.share(s.ages.idle(epoch, req.Now()))
			over -= n
		}
	}
	return again * req.Block()
}
