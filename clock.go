package endpick

import (
	"runtime/debug"
	"sync/atomic"
	"time"
)

// clock is the host's clock as the router reads it: it never goes back. While the host's is
// behind by less than setBack, as when two goroutines have read it at the same time, the
// router's stands still. One that is further behind has been set back: the router's goes on from
// where it was. A leap ahead is time that has passed, as in a simulation.
type clock struct {
	host  func() time.Time
	epoch time.Time // when the router was made
	made  time.Time // the same by time.Now, for a clock that panics

	// Nanoseconds: the latest time since the epoch, and what is added to the host's time.
	latest, shift atomic.Int64
}

const setBack = time.Second

// maxTime is how far from the epoch the host's time may be; what is further is as far.
const maxTime = 100 * 365 * 24 * time.Hour

func newClock(host func() time.Time) clock {
	return clock{host: host, epoch: host(), made: time.Now()}
}

// at is the router's time at this time of the host's.
func (c *clock) at(host time.Time) time.Time {
	since := min(max(host.Sub(c.epoch), -maxTime), maxTime)
	for {
		shift, latest := c.shift.Load(), c.latest.Load()
		switch now := int64(since) + shift; {
		case now > latest && !c.latest.CompareAndSwap(latest, now):
		case now >= latest:
			return c.epoch.Add(time.Duration(now))
		case latest-now < int64(setBack):
			return c.epoch.Add(time.Duration(latest))
		default:
			c.shift.CompareAndSwap(shift, shift+latest-now)
		}
	}
}

// now is the router's time. No lock is held.
func (g *guard) now() time.Time {
	at, failure := g.time()
	g.notify(failure)
	return at
}

// time is the router's time, and what the host is to hear. Its clock panics in whatever
// goroutine asks, even where nothing would recover it, such as a poller's. What is read instead is
// not ahead of a simulated clock, which runs faster: a leap ahead would end all leases.
func (g *guard) time() (at time.Time, failure error) {
	defer func() {
		if v := recover(); v != nil {
			g.panics.Add(1)
			failure = &PanicError{Stage: "Config.Clock", Value: v, Stack: debug.Stack()}
			at = g.at(g.epoch.Add(time.Since(g.made)))
		}
	}()
	return g.at(g.host()), nil
}
