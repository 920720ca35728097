package prefix

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/endpick/endpick"
)

// claims learns what share of blocks that were idle for a given time is used
// again.
//
// A conversation pauses, for a tool or its user, and its blocks age. The engine
// evicts the least recently used ones first, whatever a router would like; but a
// router decides which engine has to evict. By the time that blocks are about to
// be evicted, most tools have answered, so the idle time tells more than what the
// conversation waits for.
//
// Blocks are counted by how they end: used again, or evicted. Blocks that are
// evicted and then asked for count as evicted, which underestimates claims. Nobody
// can claim more than the blocks that the index lets a tenant hold, each with
// certainty.
type claims struct {
	used    [idleTimes]float64 // blocks, by idle time
	evicted [idleTimes]float64

	// shares caches the results of share, by idle time, as float bits; known has a bit
	// for each that is cached. Concurrent readers may compute the same one.
	shares [idleTimes]atomic.Uint64
	known  atomic.Uint32
}

// idleTimes are powers of two times 100 ms; the last is 3.4 years.
const idleTimes = 32

func idleTime(d time.Duration) int {
	return min(bits.Len64(uint64(max(d, 0)/(100*time.Millisecond))), idleTimes-1)
}

// share is the share of blocks idle for that time that is used again. It may be called
// concurrently, but not together with use, evict or fade.
func (c *claims) share(idle time.Duration) float64 {
	from := idleTime(idle)
	if c.known.Load()&(1<<from) == 0 {
		var used, all float64
		for i := from; i < idleTimes; i++ {
			used += c.used[i]
			all += c.used[i] + c.evicted[i]
		}
		c.shares[from].Store(math.Float64bits(used / max(all, math.SmallestNonzeroFloat64)))
		c.known.Or(1 << from)
	}
	return math.Float64frombits(c.shares[from].Load())
}

// use and evict record how blocks that were idle for so long ended.
func (c *claims) use(idle time.Duration, blocks float64) {
	c.used[idleTime(idle)] += blocks
	c.known.Store(0)
}

func (c *claims) evict(idle time.Duration, blocks float64) {
	c.evicted[idleTime(idle)] += blocks
	c.known.Store(0)
}

// fade multiplies the weight of everything learned by part.
func (c *claims) fade(part float64) {
	for i := range c.used {
		c.used[i] *= part
		c.evicted[i] *= part
	}
	c.known.Store(0)
}

// Displaced is how many tokens of other prompts the candidate's endpoint is
// expected to compute again if it takes the request. The engine will evict as many
// blocks as the prompt and the expected output need; each counts by the share of
// such blocks that were used again. 0 while there is room. PrefixTokens must be
// set.
//
// This is what a cold prompt costs others, to be added to what it costs itself:
// see slo.BestFitConfig.
func (x *Index) Displaced(req *endpick.Request, c *endpick.Candidate) float64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	s := x.servers.Find(c.Ref)
	if s == nil {
		return 0
	}
	capacity := s.capacity()
	needed := float64(c.NewTokens(req)+max(req.ExpectedOutputTokens, 0)) / req.Block()
	over := s.held + s.pending + s.kept + int(min(needed, float64(capacity))) - capacity
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
